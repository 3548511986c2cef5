"""The pytest plugin, in pytest runs of its own: its fixtures, its options, and that it is not noticed otherwise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import retrysafe
from tests.conftest import require
from tests.stores.harnesses.dynamodb import dynamodb_url
from tests.stores.harnesses.redis import redis_url
from tests.stores.harnesses.sql import mysql_url, postgresql_url

pytestmark = pytest.mark.slow

SOURCES = str(Path(retrysafe.__file__).parents[1])
ROOT = Path(__file__).parents[2]


class Runs:
    """Runs tests that are given as text, with the plugin as pytest finds it when retrysafe is installed."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def __call__(self, tests: str, *options: str, plugins: tuple[str, ...] = ()) -> pytest.RunResult:
        self.pytester.makepyfile(test_it=tests)
        named = [f"-p{name}" for name in ("_retrysafe_pytest", *plugins)]
        return self.pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", *named, *options)


@pytest.fixture
def runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Runs(pytester)


CHARGING = """
from retrysafe import Boundary

def charged(store, **terms):
    boundary = Boundary("shop", store=store, observers=(), **terms)
    runs = []
    @boundary.once(key="order", operation="charge")
    def charge(order):
        runs.append(order)
        return len(runs)
    return boundary, charge, runs
"""


# ---------------------------------------------------------------- a project that has nothing to do with it


def test_pytest_finds_the_plugin_by_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"retrysafe": "_retrysafe_pytest"}
    assert (ROOT / "src/_retrysafe_pytest.py").is_file()
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"only-include": ["src/_retrysafe_pytest.py", "src/retrysafe"], "sources": ["src"]}


def test_nothing_of_retrysafe_is_imported_before_a_test_asks(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        monkeypatch.delenv(name)  # measuring a process imports much itself
    done = runs(
        """
        import random, sys

        def test_it(request):
            assert "retrysafe" not in sys.modules
            assert not {"hypothesis", "sqlite3", "multiprocessing"} & {name.partition(".")[0] for name in sys.modules}
            request.getfixturevalue("retrysafe_store")
            assert "retrysafe" in sys.modules
            assert "retrysafe.testing.crashing" not in sys.modules
        """,
    )
    done.assert_outcomes(passed=1)


def test_the_plugin_imports_pytest_alone() -> None:
    probe = "import sys, pytest; before = set(sys.modules); import _retrysafe_pytest; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", probe], env={"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["_retrysafe_pytest"]


def test_chance_is_left_alone(runs: Runs) -> None:
    done = runs(
        """
        import random
        random.seed(7)
        expected = random.random()
        random.seed(7)

        def test_it(retrysafe_redeliver):
            retrysafe_redeliver("abc")
            assert random.random() == expected
        """,
    )
    done.assert_outcomes(passed=1)


def test_the_cases_that_are_published_show_what_they_compared(runs: Runs) -> None:
    done = runs(
        """
        from retrysafe.testing.conformance import CASES
        from types import SimpleNamespace

        def test_it():
            bench = SimpleNamespace(finish=lambda *a: 1, lose=lambda: SimpleNamespace(decision=3))
            CASES["a_completed_result_is_replayed_byte_for_byte"](bench)
        """,
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*where 3 = namespace(decision=3).decision*"])


# ---------------------------------------------------------------- the store


def test_every_test_has_a_store_of_its_own(runs: Runs) -> None:
    done = runs(
        CHARGING
        + """
import os, pytest

seen = []

@pytest.mark.parametrize("number", range(2))
def test_it(retrysafe_store, tmp_path, number):
    assert retrysafe_store.startswith("sqlite:///") and retrysafe_store not in seen
    seen.append(retrysafe_store)
    boundary, charge, runs = charged(retrysafe_store, effects="transactional")
    assert charge("A-1") == charge("A-1") == 1
    assert os.listdir(tmp_path) == []
""",
    )
    done.assert_outcomes(passed=2)


def test_boundaries_left_open_by_a_test_are_closed(runs: Runs) -> None:
    done = runs(
        CHARGING
        + """
import asyncio, threading

left, loop = [], asyncio.new_event_loop()

def test_it(retrysafe_store):
    boundary, charge, runs = charged(retrysafe_store, lease="1s")
    with boundary.claim("held") as claim:
        claim.result = 1
    charge("A-1")

    async def body():
        async with boundary.claim("async"):
            pass

    loop.run_until_complete(body())
    left.append(boundary._settings.backend)
    assert any("retrysafe" in thread.name for thread in threading.enumerate())

def test_afterwards():
    (backend,) = left
    assert not any(made._made for made in (backend.client, backend.aclient, backend.companions, backend.acompanions))
    assert not [thread.name for thread in threading.enumerate() if "retrysafe" in thread.name]
    loop.close()
""",
    )
    done.assert_outcomes(passed=2)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "postgresql+asyncpg", "mysql", "redis", "dynamodb"])
@pytest.mark.parametrize("how", ["option", "ini"])
def test_the_same_tests_run_on_another_store(runs: Runs, kind: str, how: str, database: str) -> None:
    done = runs(
        """
        import asyncio, pytest
        from retrysafe import Boundary

        @pytest.mark.parametrize("number", range(2))
        def test_it(retrysafe_store, number):
            assert retrysafe_store.startswith(KIND)

            async def body():
                boundary = Boundary("shop", store=retrysafe_store, observers=())
                async with boundary.claim("the same key in every test") as claim:
                    assert not claim.replayed
                    claim.result = 1
                with pytest.raises(ValueError):
                    async with boundary.claim("another"):
                        raise ValueError
                await boundary.aclose()

            asyncio.run(body())
        """.replace("KIND", repr(f"{kind}:")),
        *([f"--retrysafe-store={database}"] if how == "option" else ["-o", f"retrysafe_store={database}"]),
    )
    done.assert_outcomes(passed=2)


@pytest.fixture
def database(kind: str, tmp_path: Path) -> str:
    """A store that has records already, and no schema where it has one."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'given.db'}"
    service = kind.partition("+")[0]
    require(service)
    url = {
        "postgresql": postgresql_url,
        "mysql": mysql_url,
        "redis": redis_url,
        "dynamodb": dynamodb_url,
    }[service]()
    return url.replace(f"{service}:", f"{kind}:")


def test_memory_is_no_store_that_can_be_given(runs: Runs) -> None:
    done = runs("def test_it(retrysafe_store): pass", "--retrysafe-store=memory://")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*every boundary on memory:// has records of its own*"])


@pytest.mark.one_of("slow tests")
def test_workers_must_have_stores_of_their_own(runs: Runs, tmp_path: Path) -> None:
    tests = """
        import os, pytest

        @pytest.mark.parametrize("number", range(8))
        def test_it(retrysafe_store, number):
            assert retrysafe_store.endswith(f"given{os.environ['PYTEST_XDIST_WORKER'][2:]}.db")
        """
    many = ("-n2", f"--retrysafe-store=sqlite:///{tmp_path}/given{{worker}}.db")
    runs(tests, *many, plugins=("xdist.plugin",)).assert_outcomes(passed=8)
    shared = runs(tests, "-n2", f"--retrysafe-store=sqlite:///{tmp_path}/given.db", plugins=("xdist.plugin",))
    shared.assert_outcomes(errors=8)
    shared.stdout.fnmatch_lines(["*would forget each other's records*"])


# ---------------------------------------------------------------- the other fixtures


def test_the_boundaries_that_a_test_makes_are_closed(runs: Runs) -> None:
    done = runs(
        """
        import asyncio, pytest
        from retrysafe import ConfigurationError

        made, loop = [], asyncio.new_event_loop()

        def test_it(retrysafe_boundary, retrysafe_store, tmp_path):
            boundary = retrysafe_boundary("shop", effects="transactional", observers=())
            assert boundary.entrypoint.address == retrysafe_store and boundary.name == "shop"
            elsewhere = retrysafe_boundary(store=f"sqlite:///{tmp_path}/other.db")
            assert elsewhere.address.endswith("other.db")
            for one in (boundary, elsewhere):
                with one.claim("K") as claim:
                    claim.result = 1

            async def body():
                async with elsewhere.claim("async"):
                    pass

            loop.run_until_complete(body())
            made.extend([boundary, elsewhere])

        def test_afterwards():
            for one in made:
                assert not (one._settings.backend.client._made or one._settings.backend.aclient._made)
                with pytest.raises(ConfigurationError, match="has been closed.* builds its boundaries anew"):
                    one.claim("K")
            loop.close()
        """,
    )
    done.assert_outcomes(passed=2)


def test_time_passes_in_the_store(runs: Runs) -> None:
    done = runs(
        CHARGING
        + """
import asyncio

def test_it(retrysafe_store, retrysafe_clock):
    boundary, charge, runs = charged(retrysafe_store, window="24h")
    assert charge("A-1") == charge("A-1") == 1
    assert retrysafe_clock.advance("25h") == 1
    assert charge("A-1") == 2
    assert asyncio.run(retrysafe_clock.aadvance("25h")) == 1
    assert charge("A-1") == 3
""",
    )
    done.assert_outcomes(passed=1)


def test_duplicates_pass_and_fail(runs: Runs) -> None:
    done = runs(
        CHARGING
        + """
def test_guarded(retrysafe_store, retrysafe_duplicates):
    boundary, charge, runs = charged(retrysafe_store)
    assert retrysafe_duplicates(lambda: charge("A-1"), effects=runs) == 1

def test_unguarded(retrysafe_duplicates):
    runs = []
    retrysafe_duplicates(lambda: runs.append(1), effects=runs, copies=3)

def test_in_tasks(retrysafe_duplicates):
    import asyncio
    runs = []
    async def charge():
        runs.append(1)
    asyncio.run(retrysafe_duplicates.acall(charge, effects=runs, copies=4, retries=0))
""",
    )
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(["*4 calls of the operation had 4 effects, not one:*", "*4 calls of charge() had 4 *"])


@pytest.mark.one_of("slow tests")
def test_redeliveries_are_told_with_the_seed_that_repeats_them(runs: Runs) -> None:
    tests = """
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_it(retrysafe_redeliver, number):
            first, second = retrysafe_redeliver(range(20)), retrysafe_redeliver(range(20), out_of_order=True)
            assert set(first) == set(second) == set(range(20)) and len(first) > 20
            assert False, f"deliveries {first} {second}"
        """
    done = runs(tests)
    done.assert_outcomes(failed=2)
    text = done.stdout.str()
    found = re.findall(r"--retrysafe-seed=(\w+) 'test_it.py::test_it\[(\d)\]'", text)
    assert [number for _, number in found] == ["0", "1"]
    (seed,) = {seed for seed, _ in found}
    again, other = runs(tests, f"--retrysafe-seed={seed}").stdout.str(), runs(tests).stdout.str()
    delivered = [re.findall(r"E +AssertionError: deliveries (.*)", one) for one in (text, again, other)]
    assert delivered[0] == delivered[1] != delivered[2]
    assert len(set(delivered[0])) == 2


def test_workers_share_the_seed(runs: Runs) -> None:
    tests = """
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_it(retrysafe_redeliver, number):
            assert False
        """
    text = runs(tests, "-n2", plugins=("xdist.plugin",)).stdout.str()
    seeds = re.findall(r"--retrysafe-seed=(\w+)", text)
    assert len(seeds) == 4
    assert len(set(seeds)) == 1


CRASHING = """
import sqlite3

def fresh():
    import tempfile
    path = tempfile.mkdtemp() + "/bank.db"
    with sqlite3.connect(path) as bank:
        bank.execute("CREATE TABLE charges (id)")
    bank.close()
    return path

def check(path):
    bank = sqlite3.connect(path)
    assert bank.execute("SELECT count(*) FROM charges").fetchone() == (1,)
    bank.close()

def careless(path):
    bank = sqlite3.connect(path, isolation_level=None)
    bank.execute("INSERT INTO charges VALUES (1)")
    bank.close()

def careful(path):
    bank = sqlite3.connect(path, isolation_level=None)
    bank.execute("INSERT INTO charges SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM charges)")
    bank.close()

def test_careless(retrysafe_crash_points):
    retrysafe_crash_points(careless, fresh=fresh, check=check, pairs=0)

def test_careful(retrysafe_crash_points):
    assert retrysafe_crash_points(careful, fresh=fresh, check=check, pairs=0).ok
"""


def test_crash_points_fail_with_the_report(runs: Runs) -> None:
    done = runs(CRASHING)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*reply lost*", "*test_it.py:*"])


# ---------------------------------------------------------------- async engines


def test_an_async_engine_has_a_url_of_the_same_store(runs: Runs) -> None:
    done = runs(
        """
        import asyncio
        import pytest
        from retrysafe import Boundary
        from retrysafe.testing import fixtures
        from sqlalchemy.ext.asyncio import create_async_engine

        def test_it(retrysafe_store, retrysafe_async_url):
            async def main():
                engine = create_async_engine(retrysafe_async_url)
                boundary = Boundary("shop", store=engine, effects="transactional", observers=())
                async with engine.begin() as tx, boundary.claim("k", tx=tx) as claim:
                    claim.result = 1
                await boundary.aclose()
                await engine.dispose()

            asyncio.run(main())
            with Boundary("shop", store=retrysafe_store, observers=()).claim("k") as claim:
                assert claim.replayed

        def test_of_other_stores():
            for url, made in (
                ("postgresql://u:p@h/d?pool=2", "postgresql+asyncpg://u:p@h/d"),
                ("postgresql://h/d?sslmode=require&application_name=t", "postgresql+asyncpg://h/d?ssl=require"),
                ("postgresql+psycopg://h/d?pool=2&sslmode=require", "postgresql+psycopg://h/d?sslmode=require"),
                ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
                ("mysql://h/d", "mysql+asyncmy://h/d"),
                ("mysql+pymysql://h/d", "mysql+asyncmy://h/d"),
            ):
                assert fixtures.async_url(url) == made
            with pytest.raises(pytest.UsageError, match="no engine for a store on redis"):
                fixtures.async_url("redis://h/0")
        """,
    )
    done.assert_outcomes(passed=2)
