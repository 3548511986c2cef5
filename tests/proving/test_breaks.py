"""Taking a defence out of the source makes the tests fail that are named for it (see `tests/proving/breaks`)."""

from __future__ import annotations

import pytest

from tests.deadlines import allow_any_time
from tests.proving.breaks import Break
from tests.proving.breaks.running import Result, broken, check, missing, run_broken, run_unbroken
from tests.proving.breaks.table import all_breaks
from tests.proving.effort import chance_of, effort
from tests.proving.plugin import Record
from tests.proving.proofs import Proof

BREAKS = all_breaks()
SAMPLED = sorted(chance_of("breaks").sample(sorted(BREAKS), min(len(BREAKS), effort(4, len(BREAKS)))))
"""A few of them in `make test`, others on each run; all of them in `make prove`."""
SHARE = 40
"""How many tests are run at once to see that they pass."""


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_fits_the_source(name: str) -> None:
    check(BREAKS[name])


def test_the_tests_that_breaks_name_exist() -> None:
    assert missing(test for one in BREAKS.values() for test in one.killed_by) == ""


@pytest.fixture
def own_deadline() -> None:
    """A copy's tests have a deadline, longer than that of one test here, and beyond it they say what became of them."""
    allow_any_time()


@pytest.mark.prove
@pytest.mark.usefixtures("own_deadline")
@pytest.mark.parametrize("name", SAMPLED)
def test_a_break_is_killed(name: str, proof: Record) -> None:
    one = BREAKS[name]
    result = run_broken(one)
    assert result.verdict == "killed", (
        f"{name!r}: {result.verdict}; again: python -m tests.proving.breaks '{name}'\n{result.explained()}"
    )
    proof(Proof(part="mutants", store="", mode="", fault=name, injected=1, rows=one.rows))


NAMED = list(dict.fromkeys(test for name in SAMPLED for test in BREAKS[name].killed_by))


@pytest.mark.prove
@pytest.mark.usefixtures("own_deadline")
@pytest.mark.parametrize("start", range(0, len(NAMED), SHARE))
def test_the_tests_that_kill_pass_on_a_copy_without_a_break(start: int) -> None:
    result = run_unbroken(NAMED[start : start + SHARE])
    assert result.all_were("passed"), result.explained()


PLANTED = "tests/proving/breaks/planted.py"
PROBE = Break(
    "a probe",
    "protocol/transitions.py",
    "return max(previous + 1, now)",
    "return now",
    killed_by=(PLANTED, f"{PLANTED}::test_does_not_exist"),
)


@pytest.fixture(scope="module")
def planted() -> Result:
    return run_broken(PROBE)


@pytest.mark.parametrize(
    ("test", "ending"),
    [
        ("test_passes", "passed"),
        ("test_fails", "failed"),
        ("test_errs", "failed"),
        ("test_is_skipped", "skipped"),
        ("test_fails_before_it_begins", "failed in setup"),
        ("test_does_not_exist", "not collected"),
        ("test_is_no_program", "not a program: NameError: name 'nothing' is not defined"),
    ],
)
def test_only_a_test_that_fails_in_its_body_kills(test: str, ending: str, planted: Result) -> None:
    found = {name.rpartition("::")[2]: how for name, how in planted.endings.items()}
    assert found[test] == ending
    assert planted.verdict == "survived"


@pytest.mark.parametrize(
    ("endings", "verdict"),
    [
        (("failed", "failed"), "killed"),
        (("failed", "skipped"), "not run"),
        (("failed", "passed", "skipped"), "survived"),
        ((), "survived"),
    ],
)
def test_a_break_whose_tests_are_skipped_has_neither_survived_nor_been_killed(
    endings: tuple[str, ...], verdict: str
) -> None:
    assert Result(dict(zip("abc", endings, strict=False)), "").verdict == verdict


def test_text_that_does_not_occur_once_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        broken("return 1", PROBE)
    with pytest.raises(ValueError, match="occurs 2 times"):
        broken(PROBE.old * 2, PROBE)


def test_what_does_not_compile_is_refused() -> None:
    with pytest.raises(SyntaxError):
        broken(f"def f():\n    {PROBE.old}\n", PROBE._replace(new="return ("))


def test_what_makes_a_plain_function_of_a_generator_is_refused() -> None:
    steps = "def steps():\n    answer = yield 1\n    return answer\n"
    with pytest.raises(ValueError, match="steps is a generator"):
        broken(steps, PROBE._replace(old="answer = yield 1", new="answer = None"))
    assert broken(steps, PROBE._replace(old="return answer", new="return None"))
