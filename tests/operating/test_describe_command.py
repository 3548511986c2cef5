"""`retrysafe describe`: what is said of a boundary is what it does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    InProgress,
    KeyExpired,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    ResultNotEncodable,
    RetrysafeError,
    StoredFailure,
    current,
    wait,
)
from retrysafe.admin.describe import MODES, describe
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.outcomes import Answered, Ending, ModeKind
from retrysafe.protocol.retry_table import ANSWERS, WITHHELD
from tests.operating.conftest import Command, Place, in_a_process, surroundings

MODULE = """
from retrysafe import Boundary, wait

def find_out(claim): ...

charges = Boundary("charges", store="sqlite:///shop.db", concurrency=wait(5))
refunds = Boundary("refunds", store="sqlite:///shop.db", effects="external", probe=find_out, scope="eu")

@charges.once(key="order.id", payload="order.amount")
def charge(order): ...

class Shop:
    inner = charges
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "described_shop.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "described_shop"
    loaded = sys.modules.pop("described_shop", None)
    for name in ("charges", "refunds"):
        if loaded is not None:
            getattr(loaded, name).close()


def test_every_boundary_of_a_module_is_described(module: str, command: Command) -> None:
    done = command("describe", module, "--json")
    charges, refunds = map(json.loads, done.out.splitlines())
    assert (charges["boundary"], refunds["boundary"]) == ("charges", "refunds")
    assert charges["window"].startswith("86400 s")
    assert charges["concurrency"].startswith("wait(5)")
    assert refunds["effects"].startswith("external")
    assert refunds["scope"] == "'eu'"
    assert charges["operations"] == [
        {
            "operation": f"{module}.charge",
            "named": "by module and name: keys are new when either changes",
            "function": f"{module}.charge",
            "key": "order.id",
            "payload": "order.amount",
        }
    ]
    doubt = {one["retry"] for one in refunds["retries"][ModeKind.EXTERNAL.value] if one["record"] == "unknown"}
    assert doubt == {f"asks probe=find_out; if the probe does not know, it {ANSWERS[Decision.DOUBT]}"}


@pytest.mark.slow
def test_one_boundary_is_described_for_people(module: str) -> None:
    done = in_a_process("describe", f"{module}:charges")
    assert done.code == 0, done.err
    assert "refunds" not in done.out
    assert "With the record in a lease, and downstream calls carry derived keys:" in done.out
    rows = {line.split("  ")[0]: line for line in done.out.splitlines()}
    assert rows["it raised anything else, or was cancelled"].endswith("runs the work")
    assert "waits up to 5 s" in rows["it is still running"]
    assert in_a_process("describe", f"{module}:Shop.inner").out == done.out


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("no_such_module", "could not be imported"),
        ("described_shop:charge", "Its boundaries: charges, refunds. All that it makes, applications too: retrysafe"),
        ("json", "defines no boundary"),
        ("json:x", "Its boundaries: none"),
    ],
)
def test_missing_parts_are_reported(module: str, command: Command, target: str, complaint: str) -> None:
    done = command("describe", target)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err


# ---------------------------------------------------------------- what is said is what happens


class Permanent(Exception):
    """Listed in permanent=."""


ANSWERED = {
    Ending.REFUSED: Answered.REFUSED,
    Ending.ABORTED: Answered.ABORTED,
    Ending.DECLINED: Answered.DECLINED,
}


def end(ending: Ending) -> Any:
    """Work that ends so."""
    if ending is Ending.UNENCODABLE:
        return object()
    if ending is Ending.DECLARED:
        current().fail(Permanent("declared"))
    elif ending is Ending.PERMANENT:
        raise Permanent
    elif ending in ANSWERED:
        current()._take_answer(ANSWERED[ending], "first")
    elif ending is not Ending.RETURNED:
        if ending is Ending.NOT_EXECUTED:
            current().not_executed()
        if ending is Ending.COMMITTED:
            current().committed()
        raise TimeoutError
    return "first"


MEANS: dict[type[Exception], str] = {
    StoredFailure: "StoredFailure",
    OutcomeUnknown: "OutcomeUnknown",
    ResultNotEncodable: "ResultNotEncodable",
    KeyReused: "KeyReused",
    KeyExpired: "KeyExpired",
    InProgress: "InProgress",
}


def meets(boundary: Boundary, payload: int = 5) -> str:
    """Return the answer to a caller with the key K, in the words of the description."""
    try:
        with boundary.claim("K", payload={"amount": payload}) as claim:
            if claim.replayed:
                return "gets the stored result"
            claim.not_executed()
            raise Ran
    except Ran:
        return "runs the work"
    except RetrysafeError as error:
        (said,) = [one for one in (*ANSWERS.values(), WITHHELD) if f"({MEANS[type(error)]})" in one]
        return said


class Ran(Exception):
    """The work was run."""


def told(boundary: Boundary, when: str) -> str:
    ground = MODES[boundary._settings.effects][0]
    (row,) = [one for one in describe(boundary)["retries"][ground.value] if one["when"] == when]
    return str(row["retry"])


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("effects", ["transactional", "keyed", "external"])
def test_after_every_ending_a_retry_meets_what_is_described(shelf: Place, effects: Any, ending: Ending) -> None:
    boundary = shelf.boundary(effects=effects, permanent=Permanent)
    try:
        with boundary.claim("K", payload={"amount": 5}) as claim:
            claim.result = end(ending)
    except (TimeoutError, Permanent, ResultNotEncodable):
        pass
    assert meets(boundary) == told(boundary, ending.value)


@pytest.mark.parametrize("on_expired", ["new", "refuse"])
@pytest.mark.parametrize("effects", ["transactional", "keyed", "external"])
def test_later_and_other_callers_meet_what_is_described(shelf: Place, effects: Any, on_expired: Any) -> None:
    terms: dict[str, Any] = {"effects": effects, "on_expired": on_expired, "window": "1h", "memory": "2h"}
    boundary = shelf.boundary(**terms)
    with boundary.claim("K", payload={"amount": 5}) as claim:
        claim.result = "first"
    assert meets(boundary, 6) == told(boundary, "the same key comes with another payload")
    shelf.elapse("K", 3601)
    assert meets(boundary) == told(boundary, "the window is over")
    shelf.elapse("K", 7201)
    assert meets(boundary) == told(boundary, "the memory is over") == "runs the work"


@pytest.mark.parametrize("effects", ["keyed", "external"])
def test_while_it_runs_and_after_it_died_a_caller_meets_what_is_described(shelf: Place, effects: Any) -> None:
    boundary = shelf.boundary(effects=effects, lease=600)
    claim = shelf.boundary(effects=effects, lease=600).claim("K", payload={"amount": 5})
    with suppress(LeaseLost), claim:
        assert shelf.record("K").effective_state == "running"
        assert _elsewhere(boundary) == told(boundary, "it is still running")
        shelf.elapse("K", 601)
        assert _elsewhere(boundary) == told(boundary, "it is paused for longer than its lease")
        assert told(boundary, "its process died") == told(boundary, "it is paused for longer than its lease")


@pytest.mark.parametrize("place", ["postgresql", "mysql"], indirect=True)
def test_a_transaction_that_is_paused_keeps_its_key(place: Place) -> None:
    boundary = place.boundary(effects="transactional", lease="1ms")
    with place.boundary(effects="transactional", lease="1ms").claim("K", payload={"amount": 5}) as claim:
        assert _elsewhere(boundary) == told(boundary, "it is paused for longer than its lease")
        assert _elsewhere(boundary) == told(boundary, "it is still running")
        claim.result = "first"


def _elsewhere(boundary: Boundary) -> str:
    """Return the answer to a caller in another thread: in this one the claim would enclose it."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(meets, boundary).result()


def test_a_boundary_that_waits_or_passes_says_so(shelf: Place) -> None:
    boundary = shelf.boundary(concurrency=wait(3), on_missing="pass", effects="keyed")
    assert told(boundary, "it is still running").startswith("waits up to 3 s for its result, then is told")
    assert told(boundary, "the key is missing") == "runs unguarded"


DYING = """
import os, sys
from retrysafe import Boundary
with Boundary(sys.argv[1], store=sys.argv[2], effects="transactional").claim("K", payload={"amount": 5}):
    os._exit(9)
"""


@pytest.mark.slow
def test_after_a_crash_in_a_transaction_a_caller_meets_what_is_described(shelf: Place) -> None:
    child = [sys.executable, "-c", DYING, shelf.name, shelf.boundaries]
    assert subprocess.run(child, check=False, env=surroundings()).returncode == 9
    boundary = shelf.boundary(effects="transactional")
    assert meets(boundary) == told(boundary, "its process died")


@pytest.mark.slow
def test_a_boundary_without_a_name_of_its_own_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As README's first example makes one."""
    readme = Path(__file__).parents[2] / "README.md"
    (tmp_path / "main.py").write_text(readme.read_text().split("```python\n", 1)[1].split("```", 1)[0])
    monkeypatch.chdir(tmp_path)
    done = in_a_process("describe", "main")
    assert done.code == 0, done.err
    assert re.search(r"^boundary +shop$", done.out, re.MULTILINE)
    assert re.search(r"^route +POST /payments\npolicy +guarded$", done.out, re.MULTILINE)
