"""Deliveries of one event to several processes at once, and to one that is killed in its handler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retrysafe import Boundary
from retrysafe.webhooks import Receiver, WebhookEvent
from tests.faults.helpers import unique, until
from tests.http.conftest import Place
from tests.http.places import only
from tests.processes import Child
from tests.webhooks.conftest import WINDOW
from tests.webhooks.providers import GITHUB, NOW, PROVIDERS, STRIPE, Provider

pytestmark = pytest.mark.slow

DURABLE = only(lambda name: name != "memory")
KILLED = only(lambda name: name in ("sqlite", "postgresql-transactional", "redis"))


def start(name: str, place: Place, provider: Provider, tmp_path: Path, dies: str = "lives") -> Child:
    effects = "transactional" if place.transactional else "keyed"
    command = [
        sys.executable,
        "-m",
        "tests.webhooks.processes",
        name,
        place.store,
        provider.name,
        effects,
        str(tmp_path),
    ]
    process = Child(*command, dies)
    assert process.hears() == "ready"
    return process


def go(*processes: Child) -> list[list[str]]:
    """Let the processes begin, and return what each has printed in the end."""
    for process in processes:
        process.go_on()
    return [" ".join(process.says()).split() for process in processes]


def ledger(tmp_path: Path) -> list[str]:
    return (tmp_path / "ledger").read_text().splitlines()


@DURABLE
def test_of_processes_that_receive_one_event_at_once_one_handles_it(place: Place, tmp_path: Path) -> None:
    name = unique("hooks")
    processes = [start(name, place, STRIPE, tmp_path) for _ in range(2)]
    answers = go(*processes)
    assert sum(answer == ["200", "first"] for answer in answers) == 1, answers
    assert all(answer in (["200", "first"], ["200", "true"], ["503", "first"]) for answer in answers), answers
    assert ledger(tmp_path) == [STRIPE.event_id]


@KILLED
def test_an_event_whose_process_was_killed_in_its_handler_is_handled_by_the_next_delivery(
    place: Place, tmp_path: Path
) -> None:
    """A transaction is gone once its server sees that; a lease is waited for. Until then the provider comes again."""
    name = unique("hooks")
    process = start(name, place, GITHUB, tmp_path, "dies")
    assert go(process) == [[]]
    assert process.ends() == -9
    effects = "transactional" if place.transactional else "keyed"
    boundary = Boundary(name, store=place.store, window=WINDOW, lease="60s", effects=effects, observers=())  # type: ignore[arg-type]
    receiver = Receiver(boundary, GITHUB.receiver_scheme(), clock=lambda: NOW)
    handled: list[str] = []

    @receiver.on(GITHUB.type)
    def handle(event: WebhookEvent[object]) -> None:
        handled.append(event.id)

    delivery = GITHUB.deliver()
    statuses: list[int] = []

    def is_handled() -> bool:
        statuses.append(receiver.receive(delivery.headers, delivery.body).status)
        return statuses[-1] == 200

    until(is_handled)
    assert set(statuses[:-1]) <= {503}
    assert receiver.receive(delivery.headers, delivery.body).status == 200
    assert handled == [GITHUB.event_id]
    boundary.close()


def test_the_providers_are_all_of_them() -> None:
    assert set(PROVIDERS) == {"standard", "stripe", "github", "slack"}


@pytest.mark.parametrize("module", ["retrysafe", "retrysafe.webhooks"])
def test_nothing_optional_is_imported(module: str) -> None:
    """A receiver needs the standard library alone."""
    code = (
        f"import sys; before = set(sys.modules); import {module}; "
        "print([name for name in sorted({n.partition('.')[0] for n in set(sys.modules) - before}) "
        "if name not in sys.stdlib_module_names and name != 'retrysafe'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
