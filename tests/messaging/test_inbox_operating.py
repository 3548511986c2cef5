"""Dead letters of inboxes, looked after by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retrysafe.cli import main
from retrysafe.messaging import InboxMessage, MessageOutcome
from retrysafe.messaging.inbox.operator import InboxOperator
from retrysafe.protocol.messages import DeadLetterFilter
from retrysafe.protocol.requests import ask
from tests.messaging.inboxes import World, envelope


def test_dead_letters_are_listed_shown_and_redriven_by_the_command_line(
    world: World, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    inbox = world.inbox()
    name = f"stock-{inbox.boundary.name}"  # a server is shared with tests before
    fail = [True]

    @inbox.handler(name, max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        if fail:
            raise ValueError("no such\ngoods")
        world.apply(message.tx, message.envelope.id)

    for n in range(3):
        handle.handle(envelope(n, "b" if n == 2 else "a"))
    fail.clear()

    def cli(*words: str) -> tuple[int, list[Any]]:
        code = main(["inbox", *words, "--store", world.url, "--json"])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    code, found = cli("status")
    [mine] = [one for one in found if one["consumer"] == name]
    assert (code, mine["dead"], mine["marked"]) == (1, 3, 0)
    code, found = cli("dead", "list", "--consumer", name)
    assert [(one["id"], one["error"], one["attempts"]) for one in found] == [
        (str(n), "ValueError: no such", 1) for n in range(3)
    ]
    assert cli("dead", "list", "--consumer", name, "--groups")[1][0]["messages"] == 3
    assert cli("dead", "show", "1", "--consumer", name, "--payload")[1][0]["payload"] == '{"n":1}'
    assert cli("dead", "show", "9", "--consumer", name)[0] == 1
    chosen = ("dead", "redrive", "--consumer", name, "--key", "a")
    assert cli(*chosen, "--dry-run") == (0, [{"chosen": 2, "redriven": 0}])
    assert handle.handle_marked() == []
    assert main(["inbox", "dead", "redrive", "--store", world.url]) == 2
    capsys.readouterr()
    fail.append(True)
    assert cli(*chosen, "--yes") == (0, [{"chosen": 2, "redriven": 2}])
    world.told.clear()
    caplog.clear()
    assert [one.became for one in handle.handle_marked()] == [MessageOutcome.DEAD] * 2
    assert world.names().count("dead_lettered") == 2, "whoever redrives before the cause is mended is told"
    assert (
        sum("ValueError: no such" in one.getMessage() for one in caplog.records if "has raised" in one.getMessage())
        == 2
    )
    fail.clear()
    assert cli(*chosen, "--yes") == (0, [{"chosen": 2, "redriven": 2}])
    assert [one.became for one in handle.handle_marked()] == [MessageOutcome.HANDLED] * 2
    assert world.applied() == ["0", "1"]
    assert [one["id"] for one in cli("dead", "list", "--consumer", name)[1]] == ["2"]
    with InboxOperator(world.url, observers=()) as operator:
        assert operator.redrive(DeadLetterFilter(consumer=name), limit=0) == 0
    chosen = ("dead", "discard", "--consumer", name, "--id", "2")
    assert cli(*chosen, "--dry-run") == (0, [{"chosen": 1, "discarded": 0}])
    assert cli(*chosen, "--yes") == (0, [{"chosen": 1, "discarded": 1}])
    assert cli("dead", "list", "--consumer", name)[1] == []
    assert [one for one in cli("status")[1] if one["consumer"] == name] == []


def test_a_message_whose_key_a_person_has_settled_as_failed_is_not_handled(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox = world.inbox(effects="external")
    sent: list[str] = []

    @inbox.handler("texts", max_attempts=1)
    def send(message: InboxMessage[Any]) -> None:
        sent.append(message.envelope.id)
        raise TimeoutError

    def cli(*words: str) -> str:
        assert main([*words, "--store", world.url, "--yes"]) == 0
        return capsys.readouterr().out

    for _ in range(2):
        send.handle(envelope(0, "a"))
    [letter] = world.letters(inbox)
    digits = letter.arrival.record_key.hex()
    assert main(["inbox", "dead", "show", "0", "--consumer", "texts", "--store", world.url]) == 0
    assert digits in capsys.readouterr().out
    settled = cli("keys", "resolve", "--hash", digits, "--as", "failed", "--reason", "it went out; never again")
    assert "inbox dead discard" in settled
    cli("inbox", "dead", "redrive", "--consumer", "texts", "--boundary", inbox.boundary.name, "--id", "0")
    assert [one.became for one in send.handle_marked()] == [MessageOutcome.DEAD]
    assert sent == ["0"]
    cli("inbox", "dead", "discard", "--consumer", "texts", "--boundary", inbox.boundary.name, "--id", "0")


def test_a_message_whose_key_a_probe_has_failed_is_handled_when_it_is_redriven(world: World) -> None:
    inbox = world.inbox(effects="external", probe=lambda claim: claim.fail(ValueError("it never went out")))
    errors: list[Exception] = [TimeoutError()]

    @inbox.handler("probed", max_attempts=1)
    def send(message: InboxMessage[Any]) -> None:
        for error in errors:
            raise error

    for _ in range(2):
        send.handle(envelope(0, "a"))
    errors.clear()
    assert len(world.letters(inbox)) == 1
    world.mark(inbox)
    assert [one.became for one in send.handle_marked()] == [MessageOutcome.HANDLED]


def test_a_message_that_several_consumers_have_given_up_is_shown_with_each_and_changed_for_the_one_that_is_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    inboxes = world.inbox(), world.inbox()
    name = inboxes[0].boundary.name
    given_up = [(inboxes[0], f"mail-{name}"), (inboxes[0], f"stock-{name}"), (inboxes[1], f"stock-{name}")]
    for inbox, consumer in given_up:

        def refuse(message: InboxMessage[Any]) -> None:
            raise ValueError("no")

        inbox.handler(consumer, max_attempts=1)(refuse).handle(envelope(name))
    owners = [(inbox.boundary.name, consumer) for inbox, consumer in given_up]

    def cli(*words: str) -> tuple[int, str]:
        code = main(["inbox", "dead", *words, "--store", world.url])
        told = capsys.readouterr()
        return code, told.out + told.err

    def found(*words: str) -> set[tuple[str, str]]:
        return {(one["boundary"], one["consumer"]) for one in map(json.loads, cli(*words, "--json")[1].splitlines())}

    table = [
        (("list", "--id", name), owners),
        (("show", name), owners),
        (("list", "--id", name, "--groups"), owners),
        (("list", "--id", name, "--consumer", f"stock-{name}"), owners[1:]),
        (("show", name, "--boundary", name), owners[:2]),
        (("list", "--id", name, "--groups", "--boundary", name), owners[:2]),
    ]
    assert [found(*words) for words, _ in table] == [set(expected) for _, expected in table]
    for verb in ("redrive", "discard"):
        code, told = cli(verb, "--id", name, "--yes")
        assert code == 2
        assert all(f"--boundary {boundary} --consumer {consumer}" in told for boundary, consumer in owners)
    one = ("--id", name, "--consumer", owners[1][1], "--boundary", owners[1][0])
    code, told = cli("discard", *one, "--yes")
    assert code == 0
    assert f"1         {owners[1][0]}" in told
    assert found("list", "--id", name) == {owners[0], owners[2]}


def test_errors_that_differ_by_numbers_and_ids_are_one_group_and_are_found_by_their_texts(world: World) -> None:
    inbox = world.inbox()
    name = f"stock-{inbox.boundary.name}"
    ids = ("order 1 at 10.0.0.1:5432", "order 0190b6f2-7f3c-7d4e-8a55-0c1d2e3f4a5b at 10.0.0.17:5433")

    @inbox.handler(name, max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        raise LookupError(ids[int(message.envelope.id)])

    for n in range(2):
        handle.handle(envelope(n, n))
    with InboxOperator(world.url, observers=()) as operator:
        kind = ("orders", "orders.placed.v1", "LookupError: order # at #")
        assert operator.count(DeadLetterFilter(consumer=name)) == {kind: 2}
        found = operator.dead(DeadLetterFilter(consumer=name, error="0190b6f2"))
        assert [one.letter.error for one in found] == [f"LookupError: {ids[1]}"]


def test_old_notes_are_forgotten(world: World) -> None:
    inbox = world.inbox()
    handle = inbox.handler("stock")(lambda message: inbox.apply_if_newer(message.tx, "sku", 1) and 1 / 0)
    handle.handle(envelope(1), redelivered=False)
    with world.connected() as look:

        def notes() -> int:
            return int(look("SELECT count(*) FROM retrysafe_inbox_attempts")[0][0])

        before = notes()
        with InboxOperator(world.url, observers=()) as operator:
            operator.forget("300d")
            assert notes() == before
            world.age_attempts(400 * 86400)
            assert operator.forget("300d") >= 1
        assert notes() < before


def test_large_dead_letters_are_looked_up_by_bytes_not_by_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.backends.sql.inbox.PAGE_BYTES", 4000)
    inbox = world.inbox()
    name = f"stock-{inbox.boundary.name}"

    @inbox.handler(name, max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        raise ValueError("no")

    for n in range(5):
        handle.handle(envelope(n)._replace(payload=b"x" * 1500))
    with InboxOperator(world.url, observers=()) as operator:
        chosen = DeadLetterFilter(consumer=name)
        assert len(operator._do(ask(operator._inbox.letters(chosen, limit=200)))) == 2
        # two that die in the same instant come in the order of their hashes
        assert sorted(one.arrival.envelope.id for one in operator.dead(chosen)) == [str(n) for n in range(5)]
        assert operator.redrive(chosen) == 5
    assert [len(handle.handle_marked(limit)) for limit in (1, 100, 100)] == [1, 4, 0]
