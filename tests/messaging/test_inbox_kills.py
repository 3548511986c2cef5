"""Consumers killed in loops: every message is applied once; one that kills is given up."""

from __future__ import annotations

import signal
import subprocess
import sys
from random import Random

import pytest

from tests.messaging.consuming import DIES, KEYS
from tests.messaging.inboxes import World
from tests.messaging.suspects import MESSAGES, POISON
from tests.processes import Child


def consumer(world: World, make: str, count: int, poison: int = -1, **environment: str) -> Child:
    name = world.boundaries[0].name
    command = [sys.executable, "-m", "tests.messaging.consuming", world.url, name, world.table, make, f"{count}"]
    return Child(*command, f"{poison}", env=environment)


def killed_or_done(child: Child, lines: int) -> bool:
    """Let it print so many lines, then kill it; whether it came to its end before."""
    line = ""
    for _ in range(lines):
        line = child.hears()
        if line in ("done", ""):
            break
    else:
        child.process.send_signal(signal.SIGKILL)
    return "done" in [line, *child.says()][-1:]


@pytest.mark.slow
@pytest.mark.parametrize("make", ["handler", "set_handler"])
@pytest.mark.fault(9)
@pytest.mark.fault(50)
def test_every_message_is_applied_once_whenever_consumers_are_killed(make: str, world: World) -> None:
    random = Random(f"kills {make} {world.kind}")
    world.inbox()
    count, runs = 150, 0

    def life() -> Child:  # the first two are not done before they are killed
        return consumer(world, make, count, **({DIES: "yes"} if runs < 2 else {}))

    while not killed_or_done(life(), random.randrange(2, 12) + 3 * runs):
        runs += 1
        assert runs < 40
        world.age_attempts()  # each of these deliveries comes long after the one before
    with world.connected() as look:
        applied = [int(row[0]) for row in look(f"SELECT value FROM {world.table}")]
    assert sorted(applied) == list(range(count))
    assert runs >= 2


@pytest.mark.slow
@pytest.mark.parametrize("make", ["handler", "batch_handler"])
@pytest.mark.fault(53)
def test_a_message_that_kills_its_consumers_ends_alone_in_the_dead_letters(make: str, world: World) -> None:
    inbox = world.inbox()
    for _ in range(3):
        assert not killed_or_done(consumer(world, make, 20, poison=3), 100)
        world.age_attempts()
    assert killed_or_done(consumer(world, make, 20, poison=3), 100)
    assert sorted(map(int, world.applied())) == [n for n in range(20) if n != 3]
    [letter] = world.letters(inbox)
    assert (letter.arrival.envelope.id, letter.letter.started - letter.letter.finished >= 2) == ("3", True)
    assert KEYS < 10  # the poison has messages behind it in its lane


@pytest.mark.slow
@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
@pytest.mark.fault(53)
def test_messages_beside_one_that_kills_are_not_given_up_with_it(world: World) -> None:
    inbox = world.inbox()
    for life in ("first", "second", "third", "last"):
        command = [sys.executable, "-m", "tests.messaging.suspects", world.url, world.boundaries[0].name, world.table]
        ended = subprocess.run([*command, life], timeout=120, check=False).returncode
        assert ended == (0 if life == "last" else -signal.SIGKILL)
        world.age_attempts()
    assert sorted(world.applied()) == [name for name in MESSAGES if name != POISON]
    assert [letter.arrival.envelope.id for letter in world.letters(inbox)] == [POISON]
