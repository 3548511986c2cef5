"""The clock of a Redis server is set while attempts run: the fencing token decides. FAULTS 42, 61, 62."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator

import pytest

from retrysafe import InProgress, LeaseLost
from tests.conftest import absent
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, completed_elsewhere, reached
from tests.faults.redis_servers import COMPILER, WithItsClock, installed

pytestmark = [pytest.mark.slow, pytest.mark.fault(42)]
HOUR = 3600


@pytest.fixture
def server() -> Iterator[WithItsClock]:
    """A server of this test's own."""
    if shutil.which(COMPILER) is None or not installed():
        absent("no redis-server, or no C compiler to set its clock with; run scripts/services install redis")
    made = WithItsClock()
    assert abs(made.time() - time.time()) < 60
    yield made
    made.close()


def jump(server: WithItsClock, seconds: int) -> None:
    """Set the clock to so many seconds ahead of the time."""
    server.set_clock(seconds)
    assert abs(server.time() - time.time() - seconds) < 60


def test_a_jump_forward_lets_another_attempt_in_and_fences_the_first(server: WithItsClock, make: Making) -> None:
    """62: the lease lapses early, so both are at work; only the later one can store its result."""
    boundary = make(server.url, lease="60s", window="48h")
    with pytest.raises(LeaseLost), boundary.claim("key") as first:
        jump(server, HOUR)
        token = completed_elsewhere(boundary, "key", "second")
        assert token > first.token
        first.result = "first"
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "second")


def test_a_late_word_after_a_jump_forward_changes_nothing(server: WithItsClock, make: Making) -> None:
    """The first attempt ends while the second one, which has taken its key over too early, is still at work."""
    boundary, name = make(server.url, lease="60s", window="48h"), "key"
    working, go_on = threading.Event(), threading.Event()

    def second() -> None:
        with boundary.claim(name) as claim:
            working.set()
            reached(go_on)
            claim.ensure_held()
            claim.result = "second"

    thread = threading.Thread(target=second)
    with pytest.raises(LeaseLost), boundary.claim(name) as first:
        jump(server, HOUR)
        thread.start()
        reached(working)
        first.result = "first"
    with pytest.raises(InProgress), boundary.claim(name):
        pytest.fail("the second attempt is at work")
    go_on.set()
    thread.join(DEADLINE)
    with boundary.claim(name) as claim:
        assert (claim.replayed, claim.result) == (True, "second")


def test_a_jump_back_frees_no_key_and_gives_no_lower_token(server: WithItsClock, make: Making) -> None:
    """61: the lease of a live attempt holds; an ended one is followed by a higher token, whatever the time."""
    boundary = make(server.url, lease="60s", window="48h")
    with boundary.claim("running") as running:
        with pytest.raises(ZeroDivisionError), boundary.claim("released") as before:
            raise ZeroDivisionError
        jump(server, -2 * HOUR)
        with pytest.raises(InProgress), boundary.claim("running"):
            pytest.fail("the first attempt is alive")
        running.ensure_held()
        running.result = "first"
    assert completed_elsewhere(boundary, "released", "second") > before.token
    for key, result in (("running", "first"), ("released", "second")):
        with boundary.claim(key) as claim:
            assert (claim.replayed, claim.result) == (True, result)


def test_a_jump_there_and_back_keeps_the_order_of_attempts(server: WithItsClock, make: Making) -> None:
    """A token from the future is followed by a higher one when the clock is right again."""
    boundary = make(server.url, lease="60s", window="48h")
    tokens: list[int] = []
    for seconds in (0, HOUR, 0, -HOUR, 2 * HOUR, 0):
        jump(server, seconds)
        with pytest.raises(ZeroDivisionError), boundary.claim("key") as claim:
            tokens.append(claim.token)
            raise ZeroDivisionError
    assert tokens == sorted(set(tokens))
