"""Places that threads wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from retrysafe.locks import Places
from tests.faults.helpers import until


def _busy() -> Exception:
    return RuntimeError("busy")


def _waiting(places: Places, work: Callable[[], None]) -> threading.Thread:
    """A thread that works on a place as soon as it has one, and waits for it now."""
    before = len(places._waiting)

    def wait() -> None:
        with places.taken(60, _busy):
            work()

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: len(places._waiting) > before)
    return thread


def test_who_came_first_is_next_though_others_ask_when_a_place_becomes_free() -> None:
    places, order = Places(1), list[str]()
    with places.taken(0, _busy):
        threads = [_waiting(places, lambda name=name: order.append(name)) for name in ("first", "second")]
    with places.taken(60, _busy):
        order.append("the one who had it")
    for thread in threads:
        thread.join()
    assert order == ["first", "second", "the one who had it"]


def test_as_many_go_on_as_there_are_free_places() -> None:
    places, together = Places(3), threading.Barrier(3)
    holders = [places.taken(0, _busy) for _ in range(3)]
    for holder in holders:
        holder.__enter__()
    threads = [_waiting(places, lambda: together.wait(60) and None) for _ in range(3)]
    for holder in holders:
        holder.__exit__(None, None, None)
    for thread in threads:
        thread.join(60)
    assert not together.broken
    assert not places._waiting


def test_who_has_given_up_waiting_does_not_keep_the_next_one_from_a_place() -> None:
    places = Places(1)
    impatient = places.taken(0, _busy)
    with places.taken(0, _busy), pytest.raises(RuntimeError, match="busy"):
        impatient.__enter__()
    with places.taken(0, _busy):
        assert not places._waiting


def test_who_was_interrupted_before_it_could_wait_does_not_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a signal whose handler raises: the place that it was to have lives on in the traceback."""
    places = Places(1)
    interrupted = places.taken(0, _busy)
    with places.taken(0, _busy), monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as caught:
        patch.setattr(Places, "_clear", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        interrupted.__enter__()
    with places.taken(0, _busy):
        assert not places._waiting
    assert caught.value is not None
