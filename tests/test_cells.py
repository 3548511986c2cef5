"""`make test` meets every value of every axis, every pair in the suites, and says what it leaves."""

from __future__ import annotations

from itertools import chain, combinations
from pathlib import Path
from random import Random

import pytest

from tests.cells import choose, values_of
from tests.messaging.harnesses import BENCHES, PUBLISHINGS
from tests.proving import effort
from tests.stores.harnesses import HARNESSES
from tests.tables import each_row
from tests.versions import OTHER_VERSIONS, Alternative, kind_of

CELLS = [values_of({"a": a, "of two": (b, c)}) for a in range(12) for b in range(5) for c in range(3)]
TESTS = """
import pytest

@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", "pqrs")
def test_cell(a, b): ...

@pytest.mark.every_pair
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", "pqr")
def test_pair(a, b): ...

@pytest.mark.slow
@pytest.mark.parametrize("c", range(10))
def test_one(c): ...

@pytest.mark.slow
def test_two(): ...

@pytest.mark.slow
def test_three(): ...

@pytest.mark.beside
def test_engine(): ...

@pytest.mark.one_of("group", of=2)
@pytest.mark.parametrize("c", range(4))
def test_group(c): ...
"""


@each_row("strength", [1, 2, 3])
def test_every_combination_of_so_many_axes_is_kept(strength: int) -> None:
    for seed in range(5):
        kept = choose(CELLS, strength, Random(seed))
        met = {found for number in kept for found in combinations(CELLS[number], strength)}
        assert met == {found for cell in CELLS for found in combinations(cell, strength)}
        assert len(kept) < (50, 90, 181)[strength - 1]


def test_each_seed_keeps_others_and_the_same_again() -> None:
    assert choose(CELLS, 1, Random(1)) == choose(CELLS, 1, Random(1)) != choose(CELLS, 1, Random(2))
    assert len({choose(CELLS, 0, Random(seed))[0] for seed in range(20)}) > 5


def test_alternatives_are_one_value() -> None:
    drivers = [Alternative("psycopg", "postgresql"), Alternative("asyncpg", "postgresql"), "sqlite"]
    assert len(choose([values_of({"driver": driver}) for driver in drivers], 1, Random(1))) == 2


SUITES = {
    "stores/test_conformance.py": HARNESSES,
    "messaging/test_publisher_suite.py": PUBLISHINGS,
    "messaging/test_consumers.py": (
        *BENCHES,
        *(version for version, kind in OTHER_VERSIONS.items() if kind in BENCHES),
    ),
}


def test_a_run_meets_every_store_broker_and_version(request: pytest.FixtureRequest) -> None:
    """Each in the suite of its kind, if the run has all suites."""
    config, met = request.config, {suite: set[str]() for suite in SUITES}
    for item in request.session.items:
        if (
            isinstance(item, pytest.Function)
            and (suite := item.nodeid.partition("::")[0].removeprefix("tests/")) in met
        ):
            params = item.callspec.params.values() if hasattr(item, "callspec") else ()
            met[suite] |= {kind_of(value, versions=True) for value in params if isinstance(value, str)}
    if config.option.keyword or config.option.markexpr or not all(met.values()):
        pytest.skip("a part of the suites")
    wanted = {suite: {kind_of(name, versions=True) for name in names} for suite, names in SUITES.items()}
    left = {suite: missed for suite, names in wanted.items() if (missed := names - met[suite])}
    assert left == {}
    assert {*OTHER_VERSIONS} <= {*chain(*wanted.values())}


@pytest.mark.one_of("the suite's own tools", of=2)
@pytest.mark.slow
def test_a_run_says_what_it_leaves(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeini("[pytest]\naddopts = -p xdist.plugin -p tests.proving.plugin -p tests.cells -p no:cacheprovider")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for arguments, length, passed in (
        (["-n", "2"], "short", "short"),
        ([], "full", "45"),
        (["test_it.py::test_one"], "short", "10"),
    ):
        monkeypatch.setenv(effort.EFFORT, length)
        monkeypatch.setenv(effort.SEED, "5")
        ended = pytester.runpytest_subprocess(*arguments, timeout=200)
        ran = ended.parseoutcomes()["passed"]
        told = "cells left to make prove in all" in ended.stdout.str()
        assert told == (passed == "short")
        if passed == "short":
            assert f"{45 - ran} cells left to make prove: test_it.py" in ended.stdout.str()
            assert 4 + 12 + 2 + 2 <= ran <= 7 + 12 + 2 + 2
        else:
            assert ran == int(passed)
