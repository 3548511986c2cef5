"""The ratchet refuses what rose, tells what fell, and lets nothing rise without a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from houseparts import ratchet, source
from houseparts.ratchet import Entry, Ratchet, Refused

LINES, CALLS = "src.lines", "once-fresh.instructions"


def _stored() -> Ratchet:
    return Ratchet(ratchet.interpreter(), {LINES: Entry(100), CALLS: Entry(10_000, "a codec")})


def test_a_rise_fails_and_says_both_values_and_both_ways_out() -> None:
    (rise,) = _stored().rises({LINES: 101, CALLS: 10_000})
    accept = 'scripts/measure-house --accept src.lines --why "reason"'
    assert rise == f"src.lines: measured 101, stored 100. Lower it, or say why: {accept}"


def test_a_fall_is_only_told_until_it_is_stored() -> None:
    stored, figures = _stored(), {LINES: 99, CALLS: 9_000}
    assert stored.rises(figures) == []
    assert stored.falls(figures) == ["once-fresh.instructions: 10,000 -> 9,000", "src.lines: 100 -> 99"]
    stored.update(figures)
    assert stored.entries == {LINES: Entry(99), CALLS: Entry(9_000, "a codec")}
    assert stored.falls(figures) == []


def test_an_update_stores_no_rise() -> None:
    stored = _stored()
    stored.update({LINES: 101, CALLS: 20_000})
    assert stored == _stored()


def test_instructions_may_differ_a_little() -> None:
    assert _stored().rises({LINES: 100, CALLS: 10_150}) == []
    assert _stored().falls({LINES: 100, CALLS: 9_950}) == []
    assert len(_stored().rises({LINES: 100, CALLS: 10_151})) == 1


def test_a_measure_rises_with_its_reason_alone(tmp_path: Path) -> None:
    stored, figures = _stored(), {LINES: 101, CALLS: 10_000}
    for why in (None, " "):
        with pytest.raises(Refused, match=r"needs a reason: --why"):
            stored.accept([LINES], why, figures)
    assert stored == _stored()
    stored.accept([LINES], 'a store: "quick"', figures)
    assert stored.rises(figures) == []
    stored.write(tmp_path / "ratchet.toml")
    assert Ratchet.read(tmp_path / "ratchet.toml") == stored
    assert stored.entries[LINES] == Entry(101, 'a store: "quick"')


def test_unknown_measures_are_refused() -> None:
    for name in ("src.words", "fork.ms"):
        with pytest.raises(Refused, match=rf"Not measured: {name}. There are: once-fresh.instructions, src.lines"):
            _stored().accept([name], "a reason", {LINES: 100, CALLS: 1, "fork.ms": 1.5})
    assert (
        _stored().rises({LINES: 100, CALLS: 1, "src.words": 1})[0].startswith("src.words: measured 1, stored nothing")
    )
    assert _stored().rises({LINES: 100}, skipped={CALLS}) == []
    assert _stored().rises({LINES: 100})[0].startswith("once-fresh.instructions: stored, but nothing measures it")


def test_another_interpreter_begins_anew_with_the_code_that_runs() -> None:
    stored = Ratchet("another", _stored().entries)
    with pytest.raises(Refused, match=r"these must be measured too: \['once-fresh.instructions'\]"):
        stored.update({LINES: 101})
    stored.update({LINES: 101, CALLS: 20_000})
    assert stored == Ratchet(ratchet.interpreter(), {LINES: Entry(100), CALLS: Entry(20_000, "a codec")})


def test_participles_are_known_by_their_first_word() -> None:
    names = ["_told", "aopened_by", "written", "reopen", "is_closed", "when"]
    assert list(filter(source.is_participle, names)) == ["_told", "aopened_by", "written"]


def test_circles_are_of_modules_that_reach_each_other() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert source.circles(imports) == [{"b", "c"}]
