"""`retrysafe inbox run` consumes from every broker, as `Subscription` does."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary
from retrysafe.cli import main
from retrysafe.messaging import DeadLetterFilter, Envelope, Inbox, InboxMessage, InboxOperator
from retrysafe.messaging.brokers.registry import broker_at
from retrysafe.messaging.inbox.dead_letters import _lease, _leases
from retrysafe.protocol.messages import PublishStatus
from tests.conftest import require
from tests.faults.helpers import until
from tests.messaging.harnesses import HARNESSES
from tests.messaging.harnesses.base import Place
from tests.operating.conftest import surroundings
from tests.processes import Program, ended_by

pytestmark = pytest.mark.slow

GROUP, TOPIC = "inventory", "orders"
SERVICE = """
import pathlib
import threading
from retrysafe import Boundary
from retrysafe.messaging import Inbox

boundary = Boundary("stock", store="sqlite:///stock.db", effects="transactional", window="15d")


@Inbox(boundary).handler("reserve")
def reserve(message):
    message.tx.execute("INSERT INTO reserved VALUES (?)", (message.data,))


@Inbox(boundary).handler("leave", max_attempts=2, backoff_base="1ms")
def leave(message):
    raise SystemExit(0)


@Inbox(boundary).handler("aleave")
async def aleave(message):
    raise SystemExit(0)


beside = Boundary("hanging", store="sqlite:///stock.db", effects="keyed", window="15d")  # no transaction is open


@Inbox(beside).handler("hang")
def hang(message):
    pathlib.Path(f"begun-{message.data}").touch()
    threading.Event().wait()


nothing = object()
"""
UNMIGRATED = """
from service import Boundary, Inbox

boundary = Boundary("early", store="sqlite:///early.db", effects="transactional", window="15d")
with boundary.entrypoint.backend.client().transaction() as opened:
    opened.handle.execute("DROP TABLE retrysafe_schema")  # as on a server before `migrate`


@Inbox(boundary).handler("early")
def early(message):
    raise AssertionError("there are no tables")
"""
DEAF = """
from retrysafe.messaging.subscription import subscription, watchdog
from retrysafe.cli import main
from retrysafe.messaging.brokers.sqlite import SqliteConsumer

async def lag(self):
    return {"orders": 3}

watchdog.STALLED = subscription.LAG_EVERY = 0.0
SqliteConsumer.assigned, SqliteConsumer.lag = ("orders",), lag
raise SystemExit(main())
"""


@pytest.fixture
def service(tmp_path: Path) -> Path:
    (tmp_path / "service.py").write_text(SERVICE, encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "stock.db")) as file:
        file.execute("CREATE TABLE reserved (number INTEGER)")
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-B", "-m", "retrysafe", "inbox", "run", "service:reserve", *arguments]


def consumed(folder: Path, *arguments: str) -> dict[str, int]:
    """Return the outcomes of the messages that were there."""
    done = subprocess.run(
        command(*arguments, "--json"),
        cwd=folder,
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def envelope(number: int) -> Envelope:
    return Envelope(
        f"01-{number}", TOPIC, f"key {number}", "placed.v1", "/shop", None, {}, b"%d" % number, "application/json"
    )


def reserved(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "stock.db")) as file:
        return [number for (number,) in file.execute("SELECT number FROM reserved ORDER BY number")]


async def fill(url: str, name: str) -> None:
    """Four messages of a topic, one of them twice."""
    broker = broker_at(url, name=name, partitions=2)
    await broker.declare([TOPIC], [GROUP])
    publisher = broker.publisher()
    for number in (0, 1, 1, 2, 3):
        (said,) = await publisher.publish([envelope(number)])
        assert said.status in (PublishStatus.ACKED, PublishStatus.DUPLICATE), said
    await publisher.aclose()


@pytest.mark.fault(50)
@pytest.mark.parametrize("kind", [name for name, harness in HARNESSES.items() if harness.left is not None])
def test_messages_are_handled_once_from_the_command_line(kind: str, service: Path) -> None:
    harness = HARNESSES[kind]
    if harness.service:
        require(harness.service)
    url, name = harness.url(service), f"command-{service.name[-12:].replace('_', '-').strip('-')}-{kind}"
    asyncio.run(fill(url, name))
    told = [one.format(name=name, topic=TOPIC, group=GROUP) for one in harness.group]
    found: Counter[str] = Counter()
    for _ in range(5):  # a run ends when nothing has come for so long, and on a busy machine a broker may take longer
        found.update(consumed(service, "--broker", url, *told, "--once", "5s"))
        if found["handled"] == 4:
            break
    assert found.pop("duplicate", 0) <= 1
    assert found == {"handled": 4}
    assert reserved(service) == [0, 1, 2, 3]
    assert consumed(service, "--broker", url, *told, "--once", "1s") == {}
    if harness.remove is not None:
        asyncio.run(harness.remove(Place(url, name, TOPIC, GROUP, 2)))


@pytest.mark.fault(50)
@pytest.mark.parametrize("kind", ["kafka", "redis"])
def test_a_group_of_its_own_replays_a_whole_topic_and_nothing_runs_again(kind: str, service: Path) -> None:
    harness = HARNESSES[kind]
    require(kind)
    url, name = harness.url(service), f"replay-{service.name[-12:].replace('_', '-').strip('-')}-{kind}"
    asyncio.run(fill(url, name))
    for group, outcome in ((GROUP, "handled"), ("replay", "duplicate")):
        told = [one.format(name=name, topic=TOPIC, group=group) for one in harness.group]
        found: Counter[str] = Counter()
        while found[outcome] < 4:
            found.update(consumed(service, "--broker", url, *told, "--once", "5s"))
        assert found.keys() <= {outcome, "duplicate"}
    assert reserved(service) == [0, 1, 2, 3]
    if harness.remove is not None:
        asyncio.run(harness.remove(Place(url, name, TOPIC, GROUP, 2)))


def test_a_partition_that_gives_nothing_ends_the_process_for_a_supervisor(service: Path) -> None:
    url = f"sqlite:///{service / 'broker.db'}"
    asyncio.run(broker_at(url, name="shop").declare([TOPIC], [GROUP]))
    words = [*command("--broker", url, "--group", f"shop.{GROUP}.{TOPIC}")[4:]]
    done = subprocess.run(
        [sys.executable, "-B", "-c", DEAF, *words],
        cwd=service,
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, "3 messages wait in orders" in done.stderr) == (2, True), done.stderr


@pytest.mark.fault(86)
@pytest.mark.parametrize("once", [(), ("--once", "1h")], ids=["forever", "once"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_consumer_ends_when_it_is_told_to(number: signal.Signals, once: tuple[str, ...], service: Path) -> None:
    url = f"sqlite:///{service / 'broker.db'}"
    asyncio.run(fill(url, "shop"))
    arguments = ("--broker", url, "--group", f"shop.{GROUP}.{TOPIC}")
    running = subprocess.Popen(
        command(*arguments, *once),
        cwd=service,
        env=surroundings(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while len(reserved(service)) < 4:
        assert running.poll() is None, running.communicate()
    running.send_signal(number)
    told, log = running.communicate(timeout=300)
    left = consumed(service, *arguments, "--once", "1s")
    assert left in ({}, {"duplicate": 1}), "what was sent twice may not have begun"
    assert (running.returncode, "4 handled" in told) == (int(bool(once and left)), bool(once)), log


@pytest.mark.fault(86)
@pytest.mark.parametrize("once", [(), ("--once", "1h")], ids=["forever", "once"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_second_signal_ends_a_consumer_whose_handlers_do_not_end(
    number: signal.Signals, once: tuple[str, ...], service: Path
) -> None:
    """The first says how many it waits for; signals soon after it are the same one, so more are sent until it ends."""
    url = f"sqlite:///{service / 'broker.db'}"
    asyncio.run(fill(url, "shop"))
    arguments = ("--broker", url, "--group", f"shop.{GROUP}.{TOPIC}", "--lease", "1s")
    told = ["service:hang" if one == "service:reserve" else one for one in command(*arguments, *once)]
    with Program(told, cwd=service, env=surroundings(), stderr=subprocess.PIPE, text=True) as running:
        until(lambda: all((service / f"begun-{one}").exists() for one in range(4)))
        running.send_signal(number)
        assert running.stderr is not None
        line = next(line for line in running.stderr if "Stopping" in line)
        until(lambda: ended_by(running, number))
    assert "4 messages are still being handled" in line
    assert "A second SIGTERM or SIGINT ends the process at once" in line
    assert running.returncode == 128 + number
    assert consumed(service, *arguments, "--once", "3s").keys() <= {"handled", "duplicate"}
    assert reserved(service) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("service:reserve", "--broker is missing"),
        ("service:nothing --broker sqlite:///b.db", "service:nothing is a object: name a handler of an Inbox"),
        ("service:reserve --broker kafka://h --topic t --group g --lease 9s", "--lease is for"),
        ("service:reserve --broker sqlite:///b.db --topic t --group g", "give --group alone"),
        ("service:reserve --broker amqp://h --topic t --only-partitions a", "'a' is no number"),
        ("service:reserve --broker nats://h --topic t --group g --redelivery-window 16d", "window="),
        ("service:reserve --broker amqp://u:s3/cret@h --topic t", "percent-encoded"),
        ("service:reserve --broker redis://u:s3#cret@h --topic t --group g", "percent-encoded"),
        ("service:reserve --broker kafka://h:99999,i --topic t --group g", "a number up to 65535"),
        ("service:reserve --broker kafka://u:12/s3cret@h --topic t --group g", "kafka://u:***@h: write kafka://host"),
        ("service:reserve --broker amqp:u:s3cret@h --topic t", "'…@h' is not a URL of a broker"),
        ("service:reserve --broker pubsub://u:s3cret@h/x --topic t --group g", "'pubsub://u:***@h/x': write"),
        ("service:reserve --broker redis://h --topic t --group g --leases u:s3cret@x", "store='…@x'"),
        ("service:reserve --broker amqp://u:12#s3cret@h --topic t", "percent-encoded"),
        ("service:reserve --broker nats://s3#cret@h --topic t --group g", "percent-encoded"),
        ("service:reserve --broker kafka://h --topic= --group g", "--topic is empty"),
        ("service:reserve --broker kafka://h --topic t", "--topic and --group must not be empty"),
        ("service:reserve --broker nats://h --topic t", "--topic and --group must not be empty"),
        ("service:reserve --broker redis://h --topic t", "--topic and --group must not be empty"),
        ("service:reserve --broker nats://h --topic t --group g --credentials /none", "need nkeys: pip install"),
        ("service:reserve --broker sqlite:///b.db --group g --lanes 100000000", "lanes= is a number from 1 to 10000"),
        ("service:reserve --broker amqp://h --topic t --partitions 100000000", "must be from 1 to 10000"),
        ("service:reserve --broker sqlite:///b.db --group g --in-flight 1000001", "in_flight= one from 1 to 1000000"),
        ("service:reserve --broker amqp://127.0.0.1:1 --topic t --once 0", "--once='0' is not a duration"),
        ("service:reserve --broker amqp://u:s3cret@127.0.0.1:1 --topic t --once 1s", "AMQPConnectionError"),
    ],
)
def test_impossible_options_are_refused(
    arguments: str, said: str, service: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(service)
    monkeypatch.syspath_prepend(str(service))
    monkeypatch.delitem(sys.modules, "service", raising=False)
    monkeypatch.delenv("RETRYSAFE_BROKER", raising=False)
    monkeypatch.setitem(sys.modules, "nkeys", None)
    assert main(["inbox", "run", *arguments.split()]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "s3" not in told
    sys.modules.pop("service").boundary.close()


def test_a_module_that_ends_when_it_is_imported_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended the command with its own exit code, and without a word."""
    (tmp_path / "ending.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["inbox", "run", "ending:handle", "--broker", "sqlite:///b.db", "--group", "g"]) == 2
    assert "MODULE:NAME ending:handle: SystemExit: 0" in capsys.readouterr().err


def test_a_closed_output_is_no_failure(service: Path) -> None:
    """As a supervisor starts it that keeps the log alone."""
    url = f"sqlite:///{service / 'broker.db'}"
    asyncio.run(fill(url, "shop"))
    arguments = ("--broker", url, "--group", f"shop.{GROUP}.{TOPIC}", "--once", "1s")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command(*arguments)],
        cwd=service,
        env=surroundings(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, reserved(service)) == (0, [0, 1, 2, 3]), done.stderr


def leaving(folder: Path, handler: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    told = [handler if one == "service:reserve" else one for one in command(*arguments)]
    return subprocess.run(
        told, cwd=folder, env=surroundings(), capture_output=True, text=True, timeout=300, check=False
    )


def test_a_handler_that_exits_is_given_up_and_ends_no_consumer(service: Path) -> None:
    """It ended the command with 0, and each one that was started after it, before any other message was handled."""
    url = f"sqlite:///{service / 'broker.db'}"
    asyncio.run(fill(url, "shop"))
    arguments = ("--broker", url, "--group", f"shop.{GROUP}.{TOPIC}", "--once", "1s", "--json")
    found = [leaving(service, "service:leave", *arguments) for _ in range(2)]
    assert [one.returncode for one in found] == [int(one.stdout != "{}\n") for one in found], found
    assert sum(json.loads(one.stdout).get("failed", 0) for one in found) == 4
    assert sum(json.loads(one.stdout).get("dead", 0) for one in found) == 5, "one of them was sent twice"


def test_letters_that_another_process_is_redriving_are_told_of(service: Path) -> None:
    """The command said that there was no message, with 0, for 30 s after a process that redrove them had died."""
    url, store = f"sqlite:///{service / 'broker.db'}", f"sqlite:///{service / 'stock.db'}"
    asyncio.run(broker_at(url, name="shop", partitions=2).declare([TOPIC], [GROUP]))
    boundary = Boundary("stock", store=store, effects="transactional", window="15d", observers=())

    @Inbox(boundary).handler("reserve", max_attempts=1)
    def broken(message: InboxMessage[Any]) -> None:
        raise ValueError("broken")

    assert [broken.handle(envelope(number)).became for number in range(3)] == ["dead"] * 3
    with InboxOperator(store, observers=()) as operator:
        assert operator.redrive(DeadLetterFilter(consumer="reserve"), limit=2) == 2
    arguments = ("--broker", url, "--group", f"shop.{GROUP}.{TOPIC}", "--once", "1ms")
    with closing(_leases(broken.letters)) as leases, _lease(leases, broken.setting):
        assert broken.handle_marked() == []
        found = [leaving(service, "service:reserve", *arguments, *more) for more in ([], ["--json"])]
    boundary.close()
    found.append(leaving(service, "service:reserve", *arguments))
    told = "no message; marked dead letters that another process is handling, unless it died less than 30 s ago: 2"
    assert [(one.returncode, one.stdout.strip()) for one in found] == [
        (1, told),
        (1, '{"marked": 2}'),
        (0, "2 handled"),
    ], found
    assert reserved(service) == [0, 1]


@pytest.mark.parametrize("once", [(), ("--once", "1h")], ids=["forever", "once"])
def test_a_store_without_tables_is_told_of_before_the_first_message(service: Path, once: tuple[str, ...]) -> None:
    """It was noticed when a message came, which may be at night."""
    (service / "unmigrated.py").write_text(UNMIGRATED, encoding="utf-8")
    url = f"sqlite:///{service / 'broker.db'}"
    asyncio.run(broker_at(url, name="shop", partitions=2).declare([TOPIC], [GROUP]))
    done = leaving(service, "unmigrated:early", "--broker", url, "--group", f"shop.{GROUP}.{TOPIC}", *once)
    assert done.returncode == 2, done.stderr
    assert "Run: retrysafe migrate --store sqlite:///" in done.stderr


def test_a_handler_on_the_loop_that_exits_does_not_look_like_an_end_by_a_signal(service: Path) -> None:
    url = f"sqlite:///{service / 'broker.db'}"
    asyncio.run(fill(url, "shop"))
    done = leaving(service, "service:aleave", "--broker", url, "--group", f"shop.{GROUP}.{TOPIC}")
    assert done.returncode == 2
    assert "A handler on the event loop has called sys.exit(0)." in done.stderr
