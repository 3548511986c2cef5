"""`retrysafe runs`: what an operator sees of work in steps, and does about it, through the real command line."""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, Claim, ConfigurationError, Keyring, OutcomeUnknown, StoredFailure, current
from retrysafe.admin.runs import UNASKED
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.store import keeps_messages
from retrysafe.backends.steps import keeps_steps, runs_of
from retrysafe.messaging import Envelope, Inbox, InboxMessage
from retrysafe.protocol.records import Filter
from tests.operating.conftest import Command, Done, Place, in_a_process, place_of


class Killed(BaseException):
    """The process ends here."""


class Trips:
    """Trips in steps, whose calls are noted; what `fails` raises in its step."""

    def __init__(self, place: Place, **terms: Any) -> None:
        self.place, self.calls = place, list[str]()
        self.fails: dict[str, BaseException] = {}
        self.boundary: Boundary = place.boundary(effects="keyed", permanent=ValueError, shared=True, **terms)

    def attempt(self, key: str, **fails: BaseException) -> Any:
        self.fails = fails
        try:
            with self.boundary.claim(key) as claim:
                return self._book(claim)
        except (Exception, Killed) as error:  # noqa: BLE001 - it is looked at
            return error

    def _book(self, claim: Claim[Any, Any]) -> Any:
        if not claim.replayed:
            for name in ("flight", "hotel"):
                claim.step(name, self._call, name, undo=self._undo)
            claim.step("mail", self._call, "mail", effects="external")
            claim.result = claim.step("bill", self._call, "bill", each="c-7")
        return claim.result

    def _call(self, name: str) -> str:
        self.calls.append(name)
        self._fail(name)
        return name

    def _undo(self, name: str) -> None:
        self._fail(f"undo_{name}")
        self.calls.append(f"undo {name}")

    def _fail(self, name: str) -> None:
        assert current().key_for("x")
        if name in self.fails:
            raise self.fails[name]


def asked(place: Place, verb: str, key: str, *more: str, group: str = "runs") -> list[str]:
    return [group, verb, "--store", place.operators, "--boundary", place.name, "--key", key, *more]


def listed(place: Place, command: Command, *more: str) -> dict[str, str]:
    """The last step of each run, by its state."""
    done = command("runs", "list", "--store", place.operators, "--boundary", place.name, "--json", *more)
    assert done.code == 0, done.err
    return {row["effective_state"]: row["last_step"] for row in map(json.loads, done.out.splitlines())}


def shown(place: Place, command: Command, key: str) -> dict[str, Any]:
    done = command(*asked(place, "show", key, "--json"))
    assert done.code == 0, done.err
    return dict(json.loads(done.out))


def follow(command: Command, place: Place, run: dict[str, Any], when: str, **values: str) -> Done:
    """Type the command that a run's page shows for a purpose."""
    (line,) = (one["command"] for one in run["next"] if when in one["when"])
    words = [values.get(word, word) for word in shlex.split(line)[1:]]
    words += [] if "--store" in words else ["--store", place.operators]
    return command(*words, *(["--yes"] if {"release", "redrive"} & {*words} else []))


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "redis", "dynamodb"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The stores that keep steps."""
    made = place_of(request.param, tmp_path)
    yield made
    made.close()


def test_a_run_of_a_dead_letter_names_the_command_that_lets_it_go_on(keeper: Place, command: Command) -> None:
    if not keeps_messages(connect(keeper.operators).store):
        pytest.skip("no dead letters")
    boundary = keeper.boundary(effects="keyed", permanent=ValueError, shared=True)
    done: list[str] = []

    @Inbox(boundary).handler("trips")
    def book(message: InboxMessage[Any]) -> None:
        message.claim.step("hotel", done.append, "hotel", undo=cancel)
        raise ValueError("no car")

    def cancel(_: None) -> None:
        if len(done) < 2:
            raise TimeoutError("no answer")

    message = Envelope("m-1", "trips", "T-1", "trips.v1", "/s", None, {}, b"{}", "application/json")
    assert "could not be undone" in book.handle(message).error
    store = ["--store", keeper.operators]
    (row,) = map(json.loads, command("runs", "list", *store, "--boundary", keeper.name, "--json").out.splitlines())
    named = [*store, "--hash", row["key_hash"]]

    done.append("the hotel is back")
    released = command("keys", "release", *named, "--reason", "it is back", "--yes")
    run = json.loads(command("runs", "show", *named, "--json").out)
    redriven = follow(command, keeper, run, "only when it is redriven")
    assert (redriven.code, run["next"][-1]["command"] in released.out) == (0, True), redriven.err
    assert [one.became.value for one in book.handle_marked()] == ["dead"]
    assert "failed" in listed(keeper, command)


def test_a_run_is_listed_shown_and_given_up(place: Place, command: Command) -> None:
    if runs_of(connect(place.operators)) is None:
        done = command("runs", "list", "--store", place.operators)
        kept = keeps_steps(connect(place.operators))
        told = "cannot be listed. One is shown by its key" if kept else "keeps no steps"
        assert (done.code, told in done.err) == (2, True)
        assert command("status", "--store", place.operators, "--json").code == 0
        return
    trips = Trips(place)
    place.completed("plain", effects="keyed", shared=True)
    assert trips.attempt("done") == "bill"
    assert isinstance(trips.attempt("given up", mail=ValueError("bounced")), ValueError)
    assert isinstance(trips.attempt("stranded", bill=OSError("no paper")), OSError)
    ends = {"completed": "'bill' (c-7) done", "failed": "'flight' undone", "released": "'mail' done"}
    if place.operators.startswith("redis"):
        ends["failed"] = "goes back"
    found = listed(place, command)
    if found["failed"] in ("'hotel' undone", "goes back"):  # all within the millisecond of SQLite's clock
        ends["failed"] = found["failed"]
    assert found == ends
    assert listed(place, command, "--stranded") == {}
    chosen = listed(place, command, "--state", "failed", "--state", "completed")
    assert chosen == {state: ends[state] for state in ("completed", "failed")}
    place.elapse("stranded", 7200)
    assert "released" in listed(place, command, "--stranded", "--older-than", "0.001")

    run = shown(place, command, "stranded")
    assert [(one["step"], one["text"]) for one in run["steps"]] == [
        ("flight", "done, can be undone"),
        ("hotel", "done, can be undone"),
        ("mail", "done"),
    ]
    assert run["in_doubt"] == ""
    refused = command(*asked(place, "cancel", "done", "--reason", "late"))
    assert (refused.code, "The run is completed" in refused.err) == (1, True)
    done = follow(command, place, run, "Give the run up", WHY="the customer left")
    assert (done.code, done.out) == (0, "run_cancelled: released → going back\n"), done.err
    for group in ("runs", "keys"):
        text = command(*asked(place, "show", "stranded", group=group)).out
        assert (
            text.splitlines()[-1]
            == "Its steps are undone when it is asked for again with its key; no command starts it."
        )
    again = command(*asked(place, "cancel", "stranded", "--reason", "late"))
    assert (again.code, "goes back already" in again.err) == (1, True)
    trips.calls.clear()
    error = trips.attempt("stranded")
    assert isinstance(error, StoredFailure)
    assert (error.type, error.message) == ("Cancelled", "the customer left")
    assert trips.calls == ["undo hotel", "undo flight"], "and the bill was not asked for"


def test_a_step_in_doubt_is_named_everywhere_and_settled(keeper: Place, command: Command) -> None:
    place, trips = keeper, Trips(keeper)
    for key, outcome, more, after in (
        ("happened", "happened", {"JSON": '"sent"', "WHY": "in the log"}, ["bill"]),
        ("did not", "did not happen", {"WHY": "not in the log"}, ["mail", "bill"]),
    ):
        assert isinstance(trips.attempt(key, mail=Killed()), Killed)
        for _ in range(2):
            error = trips.attempt(key)
            assert isinstance(error, OutcomeUnknown)
            assert error.detail.startswith("Step 'mail' was begun"), "the later errors name it too"
        run = shown(place, command, key)
        assert run["in_doubt"] == "Step 'mail' was begun, and it is not known whether it happened."
        assert [one["step"] for one in run["steps"] if "in doubt" in one["text"]] == ["mail"]
        told = command("keys", "show", "--store", place.operators, "--boundary", place.name, "--key", key)
        assert "Step 'mail' was begun, and it is not known" in told.out
        assert "The attempt has said: Step 'mail' was begun by an attempt" in told.out
        wrong = command(*asked(place, "resolve", key, "--step", "hotel", "--as", "not-done"))
        assert (wrong.code, "step 'hotel' is not to be settled" in wrong.err) == (2, True)
        wrong = command(*asked(place, "resolve", key, "--step", "hotl", "--as", "not-done"))
        assert (wrong.code, "has no step 'hotl'" in wrong.err) == (2, True)
        assert run["why"].startswith(f"{run['in_doubt']} An earlier attempt than the last one began it.")
        whole = asked(place, "resolve", key, "--as", "completed", "--result", "1", group="keys")
        assert (command(*whole).code, command(*asked(place, "show", key)).out.startswith("!! ")) == (2, True)
        settled = follow(command, place, run, outcome, **more)
        assert (settled.code, "The next retry goes on behind the last step." in settled.out) == (0, True)
        trips.calls.clear()
        assert trips.attempt(key) == "bill"
        assert trips.calls == after

    for key, purpose, after in (
        ("mended", "The cause is corrected", ["undo hotel", "undo flight"]),
        ("by hand", "undone the step by hand", ["undo flight"]),
    ):
        for _ in range(2):
            error = trips.attempt(key, bill=ValueError("no funds"), undo_hotel=KeyError("no such booking"))
            assert isinstance(error, OutcomeUnknown)
            assert error.detail.startswith("Step 'hotel' could not be undone: KeyError('no such booking')")
        run = shown(place, command, key)
        assert run["in_doubt"] == "Step 'hotel' was to be undone, and it is not known whether that happened."
        assert run["cause"] == "ValueError: no funds"
        text = command(*asked(place, "show", key)).out
        assert text.startswith("!! Step 'hotel' was to be undone")
        assert "goes back, because of ValueError: no funds" in text
        assert "as\n``retrysafe runs show`` says" in str(error)
        for settled in (("completed", "--result", "1"), ("failed",)):
            wrong = command(*asked(place, "resolve", key, "--reason", "x", "--as", *settled, group="keys"))
            assert (wrong.code, "never be undone: 'flight', 'hotel'" in wrong.err) == (2, True)
        with pytest.raises(ConfigurationError, match="never be undone"):
            trips.boundary.resolve(key, "failed")
        assert place.operator().resolve_batch(Filter(place.name), "failed").changed == 0
        again = command(*asked(place, "release", key, "--reason", "try once more", "--yes", group="keys"))
        assert again.code == 0
        assert isinstance(trips.attempt(key, undo_hotel=KeyError("no such booking")), OutcomeUnknown)
        run = shown(place, command, key)
        assert "An earlier attempt" not in run["why"], "which did the step; the last one could not undo it"
        assert follow(command, place, run, purpose, WHY="asked the hotel").code == 0
        trips.calls.clear()
        assert isinstance(trips.attempt(key), StoredFailure)
        assert trips.calls == after


def test_runs_that_cannot_be_given_up_or_settled_are_refused_with_the_reason(shelf: Place, command: Command) -> None:
    place, boundary = shelf, shelf.boundary(effects="keyed", shared=True)
    empty = command("runs", "list", "--store", shelf.operators)
    assert (empty.code, empty.out.splitlines()[-1]) == (0, "0 runs")
    with suppress(KeyError), boundary.claim("no undo") as claim:
        claim.step("charge", str)
        raise KeyError
    place.completed("plain", effects="keyed", shared=True)
    refused = {
        ("cancel", "no undo"): (1, "None of its steps has a compensation"),
        ("cancel", "plain"): (1, "The key has no steps, and is completed: retrysafe keys show"),
        ("show", "nothing"): (1, "No record of this key"),
        ("resolve", "no undo", "--step", "charge", "--as", "not-done"): (2, "No step of the run is in doubt"),
        ("resolve", "no undo", "--step", "charge", "--as", "done"): (2, "needs --result"),
    }
    for (verb, key, *more), (code, told) in refused.items():
        done = command(*asked(place, verb, key, *more))
        assert (done.code, told in done.err) == (code, True), done.err
    assert command("runs", "list", "--store", shelf.operators, "--limit", "0").code == 2


def test_the_step_that_stopped_a_run_is_named(shelf: Place, command: Command) -> None:
    with pytest.raises(OutcomeUnknown), shelf.boundary(effects="keyed", permanent=ValueError).claim("K") as claim:
        claim.step("flight", str, undo=print)
        with pytest.raises(TimeoutError), claim.step("car", undo=print):
            raise TimeoutError
        raise ValueError
    run = shown(shelf, command, "K")
    assert run["in_doubt"] == "Step 'car' was begun, and it is not known whether it happened."
    assert not [one for one in run["next"] if "flight" in one["command"]]


def test_a_run_of_encrypted_steps_is_given_up_with_the_keyring_alone(
    shelf: Place, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = Keyring({"k": bytes(32)})
    trips = Trips(shelf, encryption=keyring)
    trips.attempt("K", bill=OSError())
    refused = command(*asked(shelf, "cancel", "K", "--reason", "late"))
    assert (refused.code, "encrypts what it stores, with the key 'k'" in refused.err) == (2, True)
    operator = shelf.operator(encryption=keyring)
    monkeypatch.setenv("KEYS", f"k:{b64encode(bytes(32)).decode()}")
    assert command(*asked(shelf, "cancel", "K", "--reason", "late", "--encryption-keys-env", "KEYS")).code == 0
    assert shelf.operator().show_run(shelf.record("K")).cause == "encrypted"
    assert operator.show_run(shelf.record("K")).cause == "Cancelled: late"
    error = trips.attempt("K")
    assert isinstance(error, StoredFailure)
    assert error.message == "late"


def test_more_runs_than_a_page_are_listed_once_each(shelf: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.backends.sql.selection.SPAN", 3)
    trips = Trips(shelf)
    for number in range(5):
        trips.attempt(f"K{number}", **({"bill": OSError()} if number % 2 else {}))
    operator = shelf.operator()
    found = operator.find_runs().runs
    assert len(found) == len({one.record.key for one in found}) == 5
    assert [one.record.updated for one in found] == sorted((one.record.updated for one in found), reverse=True)
    assert [one.record.key for one in operator.find_runs(limit=2).runs] == [one.record.key for one in found[:2]]
    released = operator.find_runs(UNASKED._replace(older_than=0)).runs
    assert len(released) == 2
    assert operator.find_runs(pages=1).capped


@pytest.mark.slow
def test_status_and_the_doctor_tell_of_runs(shelf: Place) -> None:
    trips = Trips(shelf)
    trips.attempt("stranded", bill=OSError())
    trips.attempt("begun", mail=OSError())
    trips.attempt("in doubt", bill=ValueError(), undo_hotel=KeyError("no such booking"))
    before = in_a_process("status", "--store", shelf.operators)
    assert "runs list --stranded" not in before.out
    for key in ("stranded", "begun"):
        shelf.elapse(key, 7200)
    status = in_a_process("status", "--store", shelf.operators)
    told = f"!! 2 runs of {shelf.name} would go on, and are not asked for any more, for up to 2 h."
    assert f"{told} The last step of 1 was begun and has not ended: an external one is in doubt." in status.out
    assert json.loads(in_a_process("status", "--store", shelf.operators, "--json").out)["stranded"] == 2
    doctor = in_a_process("doctor", "--store", shelf.operators)
    assert "runs-stranded" in doctor.out
    assert "runs-in-doubt" in doctor.out
    assert "Step 'hotel' was to be undone" in doctor.out
