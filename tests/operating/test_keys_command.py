"""`retrysafe keys`: what an operator types, reads and gets, through the real command line."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from retrysafe import layered
from retrysafe.admin.operator import Operator
from retrysafe.admin.rendering import instant
from retrysafe.backends.commands import quoted
from retrysafe.claims import context
from retrysafe.claims.attempt_ids import worker_of
from retrysafe.errors import OutcomeUnknown, StoreUnavailable
from retrysafe.protocol.records import OWN, EffectiveState, Record
from tests.conftest import require
from tests.operating.conftest import Command, Place, in_a_process, place_of, surroundings
from tests.stores.harnesses.redis import redis_url


def named(place: Place, key: str = "K") -> list[str]:
    return ["--store", place.operators, "--key", key, "--boundary", place.name]


# ---------------------------------------------------------------- a process of its own, on every store


@pytest.mark.slow
def test_a_stuck_key_is_found_looked_at_and_settled(place: Place, tmp_path: Path) -> None:
    seen, audit = place.unknown(), tmp_path / "audit.jsonl"
    listed = in_a_process("keys", "list", "--boundary", place.name, "--json", RETRYSAFE_STORE=place.operators)
    assert listed.code == 0, listed.err
    (row,) = map(json.loads, listed.out.splitlines())
    assert (row["key_hash"], row["effective_state"]) == (seen.key.hex(), "unknown")
    shown = in_a_process("keys", "show", *named(place), "--json")
    record = json.loads(shown.out)
    assert record["retry"].startswith("is refused until the key is settled")
    command = record["next"][0]["command"].replace('"$RETRYSAFE_STORE"', quoted(place.operators))
    step = command.replace("JSON", '"found"').split()
    step = [part.strip("'\"") if part.startswith(("'", "redis")) else part for part in step]
    done = in_a_process(*step[1:], *(() if "--store" in step else ("--store", place.operators)), "--audit", str(audit))
    assert (done.code, done.out) == (0, "resolved: unknown → completed\n"), done.err
    (told,) = (
        json.loads(line) for line in done.err.splitlines() if line.startswith("{")
    )  # beside a library's warnings
    assert [json.loads(line)["audit"] for line in audit.read_text().splitlines()] == ["intent", "outcome"]
    assert told == json.loads(audit.read_text().splitlines()[1])
    assert place.retry() == "found"
    again = in_a_process("keys", "release", *named(place), "--reason", "a mistake", "--yes")
    assert (again.code, again.out) == (1, "")
    assert "The key is completed. Possible commands: retrysafe keys expire" in again.err


@pytest.mark.slow
def test_a_key_is_expired_only_when_that_is_confirmed(place: Place) -> None:
    place.completed()
    asked = in_a_process("keys", "expire", *named(place))
    assert asked.code == 2
    assert "runs the work again" in asked.err
    assert "--yes" in asked.err
    assert place.retry() == "first"
    done = in_a_process("keys", "expire", *named(place), "--yes")
    assert (done.code, done.out) == (0, "expired: completed → expired\n")
    assert place.retry() == "again"


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "left"), [("y\n", "expired"), ("\n", "completed"), ("no\n", "completed")])
def test_on_a_terminal_it_asks(shelf: Place, answer: str, left: str) -> None:
    shelf.completed()
    terminal, side = os.openpty()
    os.write(terminal, answer.encode())
    command = [sys.executable, "-m", "retrysafe", "keys", "expire", *named(shelf)]
    done = subprocess.run(command, stdin=side, capture_output=True, text=True, check=False, timeout=60)
    os.close(terminal)
    os.close(side)
    assert "[y/N]" in done.stderr
    assert shelf.record("K").effective_state == left
    assert done.returncode == (0 if left == "expired" else 1)


# ---------------------------------------------------------------- list


def test_a_list_is_a_table_for_people(place: Place, command: Command) -> None:
    place.unknown("U")
    place.completed("C")
    done = command("keys", "list", "--store", place.operators, "--boundary", place.name)
    head, *rows, total = done.out.splitlines()
    assert head.split() == ["key", "state", "boundary", "operation", "scope", "attempts", "age"]
    assert sorted(row.split()[1] for row in rows) == ["completed", "unknown"]
    assert total == "2 keys"


def test_a_list_is_narrowed(place: Place, command: Command) -> None:
    place.unknown("old")
    place.unknown("new")
    place.completed("C")
    place.elapse("old", 7200)

    def count(*arguments: str) -> int:
        done = command("keys", "list", "--store", place.operators, "--boundary", place.name, "--json", *arguments)
        return len(done.out.splitlines())

    assert count() == 3
    assert count("--state", "unknown") == 2
    assert count("--state", "unknown", "--state", "completed") == 3
    assert count("--older-than", "1h") == count("--older-than", "3600") == 1
    assert count("--older-than", "3h") == 0
    assert count("--operation", "another") == count("--scope", "another") == 0
    assert (count("--limit", "2"), count("--limit", "0")) == (2, 3)


def test_a_list_says_when_there_is_more(shelf: Place, command: Command) -> None:
    for number in range(3):
        shelf.completed(str(number))
    said = [command("keys", "list", "--store", shelf.operators, "--limit", n).out.splitlines()[-1] for n in "123"]
    assert said == ["1 key and more: raise --limit", "2 keys and more: raise --limit", "3 keys"]


def test_leases_of_relays_are_listed_by_name_alone(shelf: Place, command: Command) -> None:
    for name in (shelf.name, *OWN):
        with shelf.boundary(name=name).claim("K") as claim:
            claim.result = "first"

    def boundaries(*arguments: str) -> list[str]:
        said = command("keys", "list", "--store", shelf.operators, "--json", *arguments)
        return sorted(json.loads(line)["boundary"] for line in said.out.splitlines())

    assert boundaries() == boundaries("--newest") == [shelf.name]
    assert json.loads(command("keys", "list", "--store", shelf.operators, "--count", "--json").out)["records"] == 1
    assert [boundaries("--boundary", name) for name in OWN] == [[name] for name in OWN]


def test_a_list_may_begin_with_what_was_written_last(shelf: Place, command: Command) -> None:
    for number in range(5):
        shelf.completed(str(number))

    def ages(*arguments: str) -> list[float]:
        said = command("keys", "list", "--store", shelf.operators, "--newest", "--json", *arguments)
        return [json.loads(line)["updated"] for line in said.out.splitlines()]

    assert len(ages()) == 5
    assert len(set(ages())) > 1  # records of one millisecond show the same time
    assert ages() == ages("--limit", "0") == sorted(ages(), reverse=True)
    assert ages("--limit", "2") == ages()[:2]
    said = command("keys", "list", "--store", shelf.operators, "--newest", "--limit", "4")
    assert said.out.splitlines()[-1] == "4 keys and more: raise --limit"


PEAK = """
import io, resource, sys
from retrysafe.cli import main

def listed(limit):
    sys.stdout = counted = Counted()
    assert main(["keys", "list", "--json", "--limit", limit]) == 0
    return counted.lines, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

class Counted(io.TextIOBase):
    lines = 0
    def write(self, text):
        self.lines += text.count("\\n")

few, before = listed("1000")
many, after = listed("0")
print(few, many, (after - before) * (1 if sys.platform == "darwin" else 1024), file=sys.__stdout__)
"""


def fill(shelf: Place, count: int) -> None:
    """Make ``count`` records, quickly."""
    shelf.completed()
    with closing(sqlite3.connect(shelf.operators.removeprefix("sqlite:///"))) as connection, connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(retrysafe_records)")]
        rest = ", ".join(name for name in columns if name != "key_hash")
        connection.execute(
            f"INSERT INTO retrysafe_records (key_hash, {rest}) WITH RECURSIVE n (i) AS "
            f"(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1}) SELECT randomblob(32), {rest} "
            "FROM retrysafe_records, n"
        )


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_a_hundred_thousand_keys_are_listed_a_page_at_a_time(shelf: Place) -> None:
    fill(shelf, 100_000)
    environment = {**os.environ, "RETRYSAFE_STORE": shelf.operators}
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, env=environment)
    few, many, grown = map(int, done.stdout.split())
    assert (few, many) == (1000, 100_000)
    assert grown < 8 * 2**20, f"{grown} bytes more for a hundred times as many keys"


@pytest.mark.slow
def test_a_reader_of_the_beginning_alone_is_not_shown_an_error(shelf: Place) -> None:
    fill(shelf, 3000)  # more than a pipe holds
    line = f"'{sys.executable}' -m retrysafe keys list --store '{shelf.operators}' --limit 0 --json | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


# ---------------------------------------------------------------- show


def test_a_key_is_shown_in_human_terms(place: Place, command: Command) -> None:
    record = place.completed()
    done = command("keys", "show", *named(place))
    assert done.code == 0
    shown = dict(line.split("  ", 1) for line in done.out.splitlines() if "  " in line.strip())
    shown = {name: value.strip() for name, value in shown.items()}
    assert shown["key hash"] == record.key.hex()
    assert shown["state"] == "completed"
    assert shown["window left"].endswith(" h")
    assert shown["payload parts"] == "amount"
    assert shown["retry"] == "gets the stored result"
    assert shown["expires"].endswith("Z")
    assert "first" not in done.out, "results may be confidential"
    assert f"retrysafe keys expire --hash {record.key.hex()}" in done.out


def test_a_running_key_says_how_long_its_lease_is(place: Place, command: Command) -> None:
    with place.boundary(lease=600).claim("K", payload={"amount": 5}) as claim:
        shown = command("keys", "show", *named(place)).out
        released = command("keys", "release", *named(place))
        claim.result = 1
    assert "lease left" in shown
    assert "No command applies" in shown
    assert released.code == 1
    assert "Its lease lapses in 10 m" in released.err or "Its lease lapses in 9" in released.err


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", {"text": '"text"', "bytes": 6, "truncated": False}),
        ("x" * 70_000, {"bytes": 70_002, "truncated": True}),
    ],
)
def test_a_result_is_shown_on_request_only(shelf: Place, command: Command, value: str, shown: dict[str, Any]) -> None:
    with shelf.boundary().claim("K") as claim:
        claim.result = value
    assert "result" not in json.loads(command("keys", "show", *named(shelf), "--json").out)
    found = json.loads(command("keys", "show", *named(shelf), "--json", "--result").out)["result"]
    assert {name: found[name] for name in shown} == shown
    assert len(found["text"]) <= 65_536
    assert found["text"] in command("keys", "show", *named(shelf), "--result").out


class Raw:
    def encode(self, value: Any, annotation: Any) -> Any:
        from retrysafe import StoredResult

        return StoredResult(value, "application/octet-stream", 1)

    def decode(self, stored: Any, annotation: Any) -> Any:
        return stored.body


def test_a_result_that_is_not_text_is_shown_in_base64(shelf: Place, command: Command) -> None:
    with shelf.boundary(codec=Raw()).claim("K") as claim:
        claim.result = b"\xff\x00"
    found = json.loads(command("keys", "show", *named(shelf), "--json", "--result").out)["result"]
    assert (found["base64"], found["media_type"]) == ("/wA=", "application/octet-stream")


@dataclass
class Order:
    amount: int
    note: str


@pytest.mark.slow
def test_a_wrong_payload_shows_which_fields_differ_and_no_values(
    place: Place, command: Command, tmp_path: Path
) -> None:
    boundary = place.boundary()

    @boundary.once(key="number", operation="place order")
    def place_order(number: str, order: Order, express: bool = False) -> None: ...

    place_order("K", Order(5, "confidential"))
    where = [*named(place), "--operation", "place order"]
    given = tmp_path / "payload.json"
    for payload, said, code in (
        ({"number": "K", "order": {"amount": 5, "note": "confidential"}, "express": False}, "is the same", 0),
        ({"number": "K", "order": {"amount": 6, "note": "confidential"}}, "differs in: order.amount", 1),
    ):
        given.write_text(json.dumps(payload))
        done = command("keys", "show", *where, "--payload", str(given))
        assert said in done.out
        assert done.code == code
        assert "confidential" not in done.out
        piped = in_a_process("keys", "show", *where, "--payload", "-", "--json", given=json.dumps(payload))
        assert json.loads(piped.out)["differing"] == (["order.amount"] if code else [])


def test_a_payload_of_other_types_is_given_with_tags(shelf: Place, command: Command, tmp_path: Path) -> None:
    from decimal import Decimal

    with shelf.boundary().claim("K", payload={"amount": Decimal("1.50")}) as claim:
        claim.result = None
    given = tmp_path / "payload.json"
    for text, code in (('{"amount": 1.5}', 1), ('{"amount": {"$": ["decimal", "1.5"]}}', 0)):
        given.write_text(text)
        assert command("keys", "show", *named(shelf), "--payload", str(given)).code == code


# ---------------------------------------------------------------- which key


def test_a_key_that_is_not_there_says_what_was_looked_for(place: Place, command: Command) -> None:
    boundary = place.boundary()
    with boundary.claim("K", operation="transfer", scope="tenant") as claim:
        claim.result = 1
    done = command("keys", "show", *named(place), "--scope", "")
    assert (done.code, done.out) == (1, ""), done.err
    assert f"No record of this key under boundary '{place.name}'" in done.err
    assert "set RETRYSAFE_SECRET" in done.err
    assert "Operations with records here: 'transfer' (1). 1 scopes are in use." in done.err
    assert command("keys", "show", *named(place), "--operation", "transfer", "--scope", "tenant").code == 0
    nowhere = command("keys", "show", "--store", place.operators, "--key", "K", "--boundary", "typo")
    assert "The store has no records of boundary 'typo'." in nowhere.err


def test_a_store_without_records_may_be_the_wrong_one(shelf: Place, command: Command) -> None:
    doubt, boundary = "The store has no records at all: is it the one that the application uses?", shelf.boundary()
    for verb in (("list",), ("show", "K-1")):
        assert doubt in command("keys", *verb, "--store", shelf.operators).err
    assert doubt not in command("keys", "list", "--store", shelf.operators, "--state", "unknown").err
    with boundary.claim("K-2") as claim:
        claim.result = 1
    for verb in (("list",), ("show", "K-1")):
        assert doubt not in command("keys", *verb, "--store", shelf.operators).err


@pytest.mark.slow
def test_a_key_is_found_without_boundary_operation_and_scope(place: Place, command: Command) -> None:
    key = f"order-{place.name}"
    with pytest.raises(TimeoutError), place.boundary().claim(key, operation="transfer", scope="tenant 7"):
        raise TimeoutError
    found = command("keys", "show", key, "--store", place.operators, "--json")
    assert found.code == 0, found.err
    shown = json.loads(found.out)
    assert (shown["boundary"], shown["operation"], shown["scope"]) == (place.name, "transfer", "tenant 7")
    assert command("keys", "show", shown["key_hash"][:10], "--store", place.operators).code == 0, "its digits do too"
    released = command("keys", "release", key, "--store", place.operators, "--reason", "not in the books", "--yes")
    assert (released.code, released.out) == (0, "resolved: unknown → released\nThe next retry runs the work again.\n")
    missing = command("keys", "show", f"{key}x", "--store", place.operators)
    assert missing.code == 1
    assert "under any boundary, operation or scope in the store" in missing.err


def test_a_rare_operation_is_found_among_many_records(shelf: Place, command: Command) -> None:
    fill(shelf, 5_000)
    with shelf.boundary().claim("needle", operation="rare", scope="one of many") as claim:
        claim.result = 1
    assert command("keys", "show", "needle", "--store", shelf.operators).code == 0


def test_a_key_of_two_operations_is_changed_by_neither_guess_nor_luck(shelf: Place, command: Command) -> None:
    """A sample may have one of the two; a change takes a look at all."""
    fill(shelf, 5_000)
    store = ("--store", shelf.operators)
    for operation in ("one", "other"):
        with pytest.raises(TimeoutError), shelf.boundary().claim("twice", operation=operation):
            raise TimeoutError
    done = command("keys", "release", "twice", *store, "--reason", "r", "--yes")
    assert done.code == 2
    assert "names more than one key" in done.err
    assert done.err.count("retrysafe keys show --hash ") == 2
    assert command("keys", "release", "twice", *store, "--operation", "one", "--reason", "r", "--yes").code == 0
    assert shelf.record("twice", operation="other").effective_state is EffectiveState.UNKNOWN


def test_digits_that_are_no_key_change_nothing(shelf: Place, command: Command) -> None:
    seen = shelf.unknown()
    done = command("keys", "release", seen.key.hex()[:8], "--store", shelf.operators, "--reason", "r", "--yes")
    assert done.code == 1
    assert shelf.record("K").version == seen.version


def test_an_ambiguous_hash_is_refused_and_listed(shelf: Place, command: Command, tmp_path: Path) -> None:
    shelf.completed("A")
    shelf.completed("B")
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        for number, name in enumerate(("a", "b")):
            connection.execute(
                "UPDATE retrysafe_records SET key_hash = ?, operation = ? WHERE key_hash = ?",
                (bytes.fromhex("abcd1234") + bytes([number] * 28), name, shelf.record("AB"[number]).key),
            )
    done = command("keys", "expire", "--store", shelf.operators, "--hash", "abcd1234", "--yes")
    assert done.code == 2
    assert "names more than one key" in done.err
    assert done.err.count("abcd1234") == 3
    assert command("keys", "show", "--store", shelf.operators, "--hash", "abcd1234", "--operation", "b").code == 0
    assert command("keys", "show", "--store", shelf.operators, "--hash", "abcd12340101").code == 0
    assert command("keys", "show", "--store", shelf.operators, "--hash", "abcd9999").code == 1


def test_the_secret_comes_from_the_environment_alone(shelf: Place, command: Command) -> None:
    with shelf.boundary(secret="s3cret" * 3).claim("K") as claim:
        claim.result = 1
    assert command("keys", "show", *named(shelf)).code == 1
    assert command("keys", "show", *named(shelf), RETRYSAFE_SECRET="s3cret" * 3).code == 0
    assert (
        command("keys", "show", *named(shelf), "--secret-env", "MINE", MINE="s3cret" * 3, RETRYSAFE_SECRET="x").code
        == 0
    )
    assert "environment variable is not set" in command("keys", "show", *named(shelf), "--secret-env", "GONE").err


# ---------------------------------------------------------------- changes


def test_stored_results_are_those_that_the_operation_would_return(shelf: Place, command: Command) -> None:
    boundary = shelf.boundary()

    @boundary.once(key="number", operation="order")
    def order(number: str) -> Order:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        order("K")
    given = '{"$": ["object", "Order", {"amount": 5, "note": "by hand"}]}'
    done = command("keys", "resolve", *named(shelf), "--operation", "order", "--as", "completed", "--result", given)
    assert done.code == 0, done.err
    assert order("K") == Order(5, "by hand")


def test_a_failure_is_given_as_a_message(shelf: Place, command: Command) -> None:
    from retrysafe import StoredFailure

    shelf.unknown()
    arguments = ("--as", "failed", "--result", "no such account", "--reason", "ticket 7", "--actor", "alice", "--json")
    done = command("keys", "resolve", *named(shelf), *arguments)
    entry = json.loads(done.out)
    assert (entry["actor"], entry["reason"], entry["after"]) == ("alice", "ticket 7", "failed")
    with pytest.raises(StoredFailure, match="no such account"):
        shelf.retry()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--as", "completed"), "needs --result JSON"),
        (("--as", "completed", "--result", "{"), "--result is not JSON"),
        (("--as", "completed", "--result", "NaN"), "--result is not JSON"),
        (("--as", "completed", "--result", '{"$": ["decimal", "x"]}'), "--result: "),
        (("--as", "released", "--result", "1"), "does not go with --as released"),
        (("--as", "gone"), "invalid choice"),
        ((), "--as"),
    ],
)
def test_a_wrong_resolution_changes_nothing(
    shelf: Place, command: Command, arguments: tuple[str, ...], complaint: str
) -> None:
    seen = shelf.unknown()
    done = command("keys", "resolve", *named(shelf), *arguments)
    assert done.code == 2
    assert complaint in done.err
    assert shelf.record("K").version == seen.version


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("list",), "--store is missing"),
        (("list", "--store", ""), "--store is empty: set the variable that it comes from"),
        (("list", "--store", "sqlite:///nowhere.db"), "does not exist"),
        (("list", "--store", "nonsense://x"), "unknown kind of URL"),
        (("list", "--store", "memory://"), "exist only in the process"),
        (("show", "--store", "sqlite:///x.db"), "--key --hash"),
    ],
)
def test_impossible_requests_are_refused(command: Command, arguments: tuple[str, ...], complaint: str) -> None:
    done = command("keys", *arguments, RETRYSAFE_STORE="")
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err


def test_other_wrong_usage_is_said(shelf: Place, command: Command, tmp_path: Path) -> None:
    with shelf.boundary().claim("U") as claim:
        claim.result = 1
    store = ("--store", shelf.operators)
    for arguments, complaint in (
        (("show", *store, "--key", "\x1b[2J"), "control character"),
        (("show", *store, "--hash", "zz"), "hex digits"),
        (("list", *store, "--older-than", "soon"), "--older-than"),
        (("list", *store, "--limit", "-1"), "--limit"),
        (("show", *named(shelf, "U"), "--payload", "-"), "without a payload"),
    ):
        done = command("keys", *arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert complaint in done.err
    shelf.completed()
    assert "No such file" in command("keys", "show", *named(shelf), "--payload", str(tmp_path / "gone")).err


def test_an_audit_that_cannot_be_written_keeps_the_change_from_happening(
    shelf: Place, command: Command, tmp_path: Path
) -> None:
    seen = shelf.unknown()
    done = command(
        "keys",
        "release",
        *named(shelf),
        "--reason",
        "r",
        "--yes",
        RETRYSAFE_AUDIT=str(tmp_path / "no" / "such" / "folder"),
    )
    assert done.code == 2
    assert "Nothing was changed" in done.err
    assert shelf.record("K").version == seen.version


def test_a_race_that_is_lost_is_told(shelf: Place, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shelf.unknown()
    resolve = Operator.resolve

    def late(self: Operator, *arguments: Any, **named: Any) -> Any:
        assert resolve(shelf.operator(), seen, "completed", result="the other operator's").done
        return resolve(self, *arguments, **named)

    monkeypatch.setattr(Operator, "resolve", late)
    done = command("keys", "release", *named(shelf), "--json", "--reason", "r", "--yes")
    assert done.code == 1
    assert "changed the key meanwhile. The key is completed." in done.err
    assert json.loads(done.out)["done"] is False
    assert json.loads(done.err.splitlines()[0])["done"] is False
    assert shelf.record("K").effective_state is EffectiveState.COMPLETED


@pytest.mark.slow
@pytest.mark.parametrize("verb", [("release",), ("resolve", "--as", "released")])
def test_keys_in_doubt_are_released_only_with_a_reason_and_a_yes(
    place: Place, command: Command, verb: tuple[str, ...]
) -> None:
    seen = place.unknown()
    for given, complaint in (((), "--reason"), (("--yes",), "--reason"), (("--reason", " "), "--reason"),
                             (("--reason", "r"), "--yes")):  # fmt: skip
        done = command("keys", verb[0], *named(place), *verb[1:], *given)
        assert (done.code, done.out) == (2, "")
        assert complaint in done.err
        assert "the next retry runs the work again: if the effect did happen, it happens twice" in done.err
    assert place.record("K").version == seen.version
    done = command("keys", verb[0], *named(place), *verb[1:], "--reason", "not in the books", "--yes")
    assert done.code == 0
    assert "The next retry runs the work again." in done.out
    assert place.retry() == "again"


def test_many_are_released_only_with_a_reason(shelf: Place, command: Command) -> None:
    for key in "AB":
        shelf.unknown(key)
    everything = ("keys", "resolve", "--all", "--as", "released", "--store", shelf.operators, "--yes")
    done = command(*everything)
    assert done.code == 2
    assert "2 keys would be settled." in done.err
    assert "--reason" in done.err
    assert {shelf.record(key).effective_state for key in "AB"} == {EffectiveState.UNKNOWN}
    assert command(*everything, "--reason", "not in the books").code == 0


# ---------------------------------------------------------------- attempts that died


def died(place: Place, key: str, effects: str, ago: int = 300) -> Record:
    """A key whose attempt died ``ago`` seconds ago, and whom nobody has asked for since."""
    claim = place.boundary(effects=effects, lease=600, name=place.name).claim(key, payload={"amount": 5})
    claim.__enter__()
    context.innermost.set(None)  # a traceback of the store's library may keep the claim
    place.elapse(key, 600 + ago)
    return place.record(key)


def test_an_attempt_that_died_in_doubt_is_counted_and_listed_as_unknown(place: Place, command: Command) -> None:
    doubtful = died(place, "D", "external")
    written = place.unknown("U")
    store = ("--store", place.operators, "--boundary", place.name)

    def listed(*states: str) -> set[str]:
        arguments = [part for state in states for part in ("--state", state)]
        done = command("keys", "list", *store, "--json", "--limit", "0", *arguments)
        return {json.loads(line)["key_hash"] for line in done.out.splitlines()}

    assert doubtful.effective_state is EffectiveState.LAPSED
    assert listed("unknown") == {doubtful.key.hex(), written.key.hex()}
    assert listed("unknown", "completed") == listed("unknown")
    assert listed("lapsed") == set()
    assert command("keys", "list", *store, "--count", "--state", "unknown").out.startswith("2")
    status = json.loads(command("status", "--store", place.operators, "--json").out)
    counted = {one["state"]: one["records"] for one in status["records"] if one["boundary"] == place.name}
    assert counted == {"unknown": 2}
    shown = command("keys", "show", *named(place, "D")).out
    assert "effective state  unknown" in shown
    assert re.search(r"stopped renewing its lease [4-9](\.\d)? m ago: its process has died or is stalled", shown)
    assert "every retry is refused until the key is settled" in shown
    assert not re.search("^(lease left|expires|tombstone until) ", shown, re.MULTILINE), "it has no end"
    assert "lapse" not in shown
    with pytest.raises(OutcomeUnknown):
        place.retry("D")
    found = place.record("D")
    told = f"attempt 1 lapsed at {instant(found.lease_until)}; a later request found that at {instant(found.updated)}"
    assert told in command("keys", "show", *named(place, "D")).out
    assert "lapse" not in command("keys", "show", *named(place, "U")).out
    assert place.operator().resolve(written, "failed").done
    arguments = ("--as", "failed", "--yes", "--boundary", place.name)
    settled = command("keys", "resolve", "--all", "--store", place.operators, *arguments)
    assert settled.out.splitlines()[-1] == "resolved: 1", settled.err
    assert doubtful.key.hex()[:8] in settled.out


def test_settling_an_attempt_that_died_in_doubt_tells_of_an_unknown_key(place: Place, command: Command) -> None:
    died(place, "K", "external")
    done = command("keys", "resolve", *named(place), "--as", "failed", "--result", "declined")
    assert done.out.startswith("resolved: unknown → failed"), done.err


def test_a_keyed_attempt_that_died_is_no_unknown(place: Place, command: Command) -> None:
    lapsed = died(place, "K", "keyed")
    done = command("keys", "list", "--store", place.operators, "--boundary", place.name, "--state", "lapsed", "--json")
    assert json.loads(done.out)["key_hash"] == lapsed.key.hex()
    assert "The next attempt takes over" in command("keys", "show", *named(place)).out


@pytest.mark.parametrize(
    ("effects", "then"), [("keyed", "the next attempt takes over then"), ("external", "wait until then")]
)
def test_a_running_key_shows_its_place_its_time_and_the_remedy_if_it_is_dead(
    place: Place, command: Command, effects: str, then: str
) -> None:
    with place.boundary(effects=effects, lease=600).claim("K") as claim:
        shown = command("keys", "show", *named(place)).out
        told = json.loads(command("keys", "show", *named(place), "--json").out)
        worker = worker_of(claim.attempt_id)
        claim.result = 1
    assert worker is not None
    assert (told["host"], told["pid"]) == worker == (worker.host, os.getpid())
    assert told["started"] == instant(place.record("K").token)
    assert f"An attempt is at work on {worker.host}, pid {worker.pid}, since {told['started']}." in shown
    assert "Its lease lapses in 10 m unless it is renewed" in shown or "Its lease lapses in 9." in shown
    assert then in shown


# ---------------------------------------------------------------- what is pasted


@pytest.mark.slow
def test_a_hint_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s $(touch owned); `touch owned` & "x"'
    folder.mkdir()
    place = place_of("sqlite", folder)
    place.unknown()
    shown = in_a_process("keys", "show", "K", "--store", place.operators)
    place.close()
    (hint,) = [line.strip() for line in shown.out.splitlines() if " release " in line]
    hint = f"{hint} --yes".replace("retrysafe", f"{sys.executable} -m retrysafe", 1)

    def pasted(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, check=False, cwd=tmp_path, env=surroundings()
        )

    as_it_is = pasted(hint)
    assert as_it_is.returncode == 2
    assert "write how you know in place of WHY" in as_it_is.stderr
    done = pasted(hint.replace("WHY", "'it was declined'"))
    assert (done.returncode, done.stdout.splitlines()[:1]) == (0, ["resolved: unknown → released"]), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_hint_has_no_password_and_names_the_variable_that_has_it(place: Place, command: Command) -> None:
    place.unknown()
    url = urlsplit(place.operators)
    shown = command("keys", "show", *named(place)).out
    assert "--store " + ('"$RETRYSAFE_STORE"' if url.password else quoted(place.operators)) in shown
    if url.scheme not in ("postgresql", "postgresql+asyncpg"):
        return
    secret = url._replace(netloc=f"{url.username}:s3cret@{url.hostname}:{url.port}").geturl()
    arguments = ["--store", secret, "--key", "K", "--boundary", place.name]
    shown = command("keys", "show", *arguments).out
    assert "s3cret" not in shown
    assert "keys release --hash" in shown
    assert '--store "$RETRYSAFE_STORE"' in shown
    assert "s3cret" not in command("status", "--store", secret).out


def test_stored_values_cannot_speak_to_the_terminal(shelf: Place, command: Command) -> None:
    scope = "\u202egnp.exe\u2028 next line"
    with pytest.raises(TimeoutError), shelf.boundary().claim("K", scope=scope):
        raise TimeoutError
    with closing(sqlite3.connect(shelf.operators.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE retrysafe_records SET boundary = ?", ("\x1b]0;owned\x07\nfaked line",))
    for arguments in (("list",), ("show", "--hash", shelf.operator().find()[0].key.hex())):
        done = command("keys", *arguments, "--store", shelf.operators)
        assert done.code == 0
        assert "\x1b" not in done.out
        assert "\u202e" not in done.out
        assert not any(line.startswith("faked line") for line in done.out.splitlines())
        assert "\\x1b]0;owned\\x07\\nfaked line" in done.out
    status = command("status", "--store", shelf.operators)
    assert "\x1b" not in status.out


# ---------------------------------------------------------------- a fast store in front


def test_a_fast_store_is_told_first_to_forget_the_key(place: Place, command: Command) -> None:
    require("redis")
    fast = redis_url()
    place.boundaries = layered(fast, place.boundaries, name="truth")
    place.completed()
    assert place.retry() == "first"
    with closing(place.boundary()) as boundary:
        assert boundary._settings.backend.cache is not None
    assert command("keys", "expire", *named(place), "--yes", "--fast", fast, "--fast-name", "truth").code == 0
    assert place.retry() == "again"


def test_a_fast_store_that_does_not_answer_keeps_the_key_from_being_expired(shelf: Place, command: Command) -> None:
    seen = shelf.completed()
    done = command("keys", "expire", *named(shelf), "--yes", "--fast", "redis://127.0.0.1:1", "--fast-name", "truth")
    assert (done.code, done.out) == (2, "")
    assert shelf.record("K").version == seen.version


def test_a_fast_store_is_told_again_when_the_change_took_longer_than_it_remembers(place: Place) -> None:
    """The operator was frozen after telling it first, and somebody kept the answer that was being taken back."""
    require("redis")
    fast = redis_url()
    place.boundaries = layered(fast, place.boundaries, name="truth")
    seen = place.completed()

    def meanwhile(entry: Mapping[str, Any]) -> None:
        if entry["audit"] == "intent":
            with closing(redis.Redis.from_url(fast)) as client:
                client.delete(*client.keys(f"retrysafe:cached:*{{{seen.key.hex()}}}"))
            assert [place.retry(), place.retry()] == ["first", "first"]

    with Operator(place.boundaries, audit=meanwhile, observers=()) as operator:
        assert operator.expire(seen).done
    assert place.retry() == "again"


def test_a_fast_store_that_does_not_answer_after_the_change_is_told_of(
    shelf: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("redis")
    seen = shelf.completed()

    def cut(entry: Mapping[str, Any]) -> None:
        def fail(changed: Record) -> None:
            raise StoreUnavailable("cut off")

        if entry["audit"] == "outcome":
            monkeypatch.setattr(operator._backend.cache, "drop", fail)

    layers = layered(redis_url(), shelf.operators, name="truth")
    with Operator(layers, audit=cut, observers=()) as operator:
        with pytest.raises(StoreUnavailable, match="The key is expired, but the fast store did not answer afterwards"):
            operator.expire(seen)
        monkeypatch.undo()
    assert shelf.record("K").effective_state is EffectiveState.EXPIRED
