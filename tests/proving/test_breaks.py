"""Taking a defence out of the source makes the tests fail that are named for it (see `tests/proving/breaks`)."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tests.deadlines import allow_any_time
from tests.processes import ROOT
from tests.proving.breaks import Break
from tests.proving.breaks.mutations import (
    Change,
    Misfit,
    always,
    first,
    instead,
    never,
    reworded,
    skipping,
    swapped,
    uncaught,
    unrestricted,
    unwrapped,
    without,
)
from tests.proving.breaks.running import Result, broken, misfits, missing, run_broken, run_unbroken
from tests.proving.breaks.table import all_breaks, tables
from tests.proving.effort import chance_of, is_full
from tests.proving.plugin import Record
from tests.proving.proofs import Proof

BREAKS = all_breaks()
_CHANCE = chance_of("breaks")
SAMPLED = sorted(BREAKS) if is_full() else [_CHANCE.choice(table).name for table in tables().values()]
"""One of each table in `make test`, another one on each run; all of them in `make prove`."""
SHARE = 40
"""The number of tests that are run at once to see that they pass."""

PLANTED = "tests/proving/breaks/planted.py"
PROBE = Break(
    "a probe",
    "protocol.transitions:next_token",
    instead("max()", "now"),
    killed_by=(PLANTED, f"{PLANTED}::test_does_not_exist"),
)


def test_every_break_fits_the_source() -> None:
    wrong = misfits(BREAKS.values())
    assert not wrong, "\n".join([f"{len(wrong)} of {len(BREAKS)} breaks:", *wrong])


def test_the_tests_that_breaks_name_exist() -> None:
    """By their functions; `make prove` collects them, with the cells that are named."""
    tests = sorted({test for one in BREAKS.values() for test in one.killed_by})
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in {test.partition("::")[0] for test in tests}}
    functions = [(test, test.partition("[")[0].rpartition("::")[2]) for test in tests if "::" in test]
    assert [test for test, name in functions if f"def {name}(" not in texts[test.partition("::")[0]]] == []
    if is_full():
        assert missing(tests) == ""


@pytest.fixture
def own_deadline() -> None:
    """A copy's tests have a deadline, longer than that of one test here, and their ending names it."""
    allow_any_time()


@pytest.mark.slow
@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("own_deadline")
@pytest.mark.parametrize("start", range(0, len(NAMED), SHARE))
def test_the_tests_that_kill_pass_on_a_copy_without_a_break(start: int) -> None:
    result = run_unbroken(NAMED[start : start + SHARE])
    assert result.all_were("passed"), result.explained()


@pytest.mark.slow
def test_only_a_failure_in_the_body_of_a_test_kills() -> None:
    planted = run_broken(PROBE)
    assert {name.rpartition("::")[2]: how for name, how in planted.endings.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_errs": "failed",
        "test_is_skipped": "skipped",
        "test_fails_before_it_begins": "failed in setup",
        "test_does_not_exist": "not collected",
        "test_is_no_program": "not a program: NameError: name 'nothing' is not defined",
    }
    assert planted.verdict == "survived"
    for endings, verdict in [
        ({"a": "failed", "b": "failed"}, "killed"),
        ({"a": "failed", "b": "skipped"}, "not run"),
        ({"a": "failed", "b": "passed", "c": "skipped"}, "survived"),
        ({}, "survived"),
    ]:
        assert Result(endings, "").verdict == verdict, endings


OPERATORS: list[tuple[Change, str, str]] = [
    (never("a"), "if a: b()", "if False: b()"),
    (never("a"), "x = c and not a.b", "x = c and False"),
    (never("a", "c"), "x = c and not a.b", "x = False"),
    (never("b", at=2), "x = b < 1 or c in b", "x = b < 1 or False"),
    (always("a"), "x = [y for y in z if a(y)]", "x = [y for y in z if True]"),
    (always("a"), "return a == 'b'", "return True"),
    (never("a"), "assert a", "fits 0 places"),
    (never("b"), "x = b < 1 or c in b", "fits 2 places"),
    (never("a"), "if b: a()", "fits 0 places"),
    (without("a"), "x = a(1) and b and c", "x = b and c"),
    (without("a"), "x = b or a", "x = b"),
    (without("A"), "x = A | B - C", "x = B - C"),
    (without("a"), "x = [b, a.c]", "x = [b]"),
    (without("a"), "f(b, a=1)", "f(b)"),
    (without("a"), "x = {'a': 1, 'b': 2}", "x = {'b': 2}"),
    (without("a"), "x = f'{a}:{b}'", "x = f':{b}'"),
    (without("a"), "x = a", "fits 0 places"),
    (skipping("a"), "a()\nb()", "b()"),
    (skipping("a"), "if b:\n    x.a = 1", "if b:\n    pass"),
    (skipping("a"), "if a:\n    b()\nc()", "c()"),
    (skipping("a"), "try:\n    b()\nfinally:\n    a()", "try:\n    b()\nfinally:\n    pass"),
    (skipping("a"), "a()\na.b()", "fits 2 places"),
    (swapped("a", "b"), "a(1)\nc()\nb()", "b()\nc()\na(1)"),
    (swapped("a", "b"), "x = f([a, c, b])", "x = f([b, c, a])"),
    (swapped("a", "b"), "b()\na()", "fits 0 places"),
    (instead("a", "b.c"), "x = d.a", "x = b.c"),
    (instead("a", "0"), "x = f('a', ab)", "x = f(0, ab)"),
    (instead("a()", "0"), "x = a + b.a(1, 2)", "x = a + 0"),
    (instead(5, "6"), "x = 5.0 if y else '5'\nz = 5", "fits 2 places"),
    (instead(True, "False"), "x = True, 1", "fits 2 places"),
    (instead("a=", "0"), "f(a=b, c=a)", "f(a=0, c=a)"),
    (instead("a=", "0"), "x = {'a': b, c: a}", "x = {'a': 0, c: a}"),
    (instead("a", "b"), "a = 1", "fits 0 places"),
    (unwrapped("f"), "x = a.f(b, c)", "x = b"),
    (unwrapped("upper"), "x = a.upper()", "x = a"),
    (uncaught("E"), "try:\n    a()\nexcept (E, F) as e:\n    b()", "try:\n    a()\nexcept (E, F) as e:\n    raise"),
    (uncaught("E"), "try:\n    a()\nexcept F:\n    b(E)", "fits 0 places"),
    (first("return 1"), "'''Words.'''\na()", "'''Words.'''\nreturn 1\na()"),
    (first("b()\nc()", "a"), "d()\nif e:\n    a()", "d()\nif e:\n    b()\n    c()\n    a()"),
    (unrestricted("b"), "x = f'WHERE a = {a} AND b = {b} AND c'", "x = f'WHERE a = {a} AND c'"),
    (unrestricted("a"), "x = f'SET d = 1 WHERE a = {a} AND b'", "x = f'SET d = 1 WHERE b'"),
    (unrestricted("b"), "x = '(a OR b) AND (b OR c) ORDER BY b'", "fits 2 places"),
    (unrestricted("c"), "x = 'NOT (a AND (b OR c)) RETURNING c'", "x = 'NOT (a) RETURNING c'"),
    (unrestricted("a") & unrestricted("c"), "x = 'a = 1 AND b AND c'", "x = 'b'"),
    (reworded("DO NOTHING", "DO"), "x = f'ON {a} DO NOTHING'", "x = f'ON {a} DO'"),
    (reworded("a", "b"), "'''a'''\nx = b'a' + c.a", "'''a'''\nx = b'b' + c.a"),
    (reworded("a", "b"), "x = 'aa'", "fits 2 places"),
]


def test_each_operator_changes_one_place_or_says_which_there_are() -> None:
    for change, source, expected in OPERATORS:
        changed = _changed(change, source)
        fits = changed.startswith(f"{change.shown.partition(' & ')[0]} {expected}")
        same = not expected.startswith("fits") and changed == _plain(expected)
        assert fits or same, f"{change.shown} makes of\n{source}\nthis:\n{changed}\nand not:\n{expected}"


def _changed(change: Change, source: str) -> str:
    tree = _function(source)
    try:
        change.apply(tree)
    except Misfit as error:
        return str(error)
    return ast.unparse(tree)


def _plain(source: str) -> str:
    return ast.unparse(_function(source))


def _function(source: str) -> ast.stmt:
    (function,) = ast.parse("def f():\n" + "\n".join(f"    {line}" for line in source.splitlines())).body
    return function


MODULE = dedent(
    '''
    import os  # a comment that stays


    class Kind:
        WORDS = {"a": 1}  # a comment that goes

        @property
        def token(self) -> int:
            """One more.

              Words of a docstring stay where they are.
            """
            if self.old:  # a comment that goes
                return 1
            return 2

        def steps(self):
            answer = yield 1
            return answer


    class Other:
        def token(self): ...


    if os.name:
        LATER = 1  # a comment that goes
    '''
)


def test_a_break_changes_the_lines_of_its_symbol_only() -> None:
    def changed(symbol: str, change: Change) -> str:
        return broken(MODULE, Break("a break", f"x:{symbol}", change, ("tests/x.py",)))

    for symbol, change, before, after, new in [
        ("Kind.token", never("old"), "    @property", "    def steps", "if False:"),
        ("Kind.WORDS", instead("a=", "2"), "    WORDS", "\n    @property", "    WORDS = {'a': 2}"),
        ("LATER", instead(1, "2"), "    LATER", "", "    LATER = 2"),
    ]:
        text = changed(symbol, change)
        assert new in text, symbol
        assert text.startswith(MODULE[: MODULE.index(before)]), symbol
        assert text.endswith(MODULE[MODULE.index(after) :] if after else "\n"), symbol
        assert len(text.splitlines()) == len(MODULE.splitlines()), symbol
    assert "\n          Words of a docstring stay" in changed("Kind.token", never("old"))
    assert changed("Kind.steps", instead("answer", "None") & first("return 1"))
    for symbol, change, words in [
        ("Kind.tokens", never("old"), r"'a break': x:Kind\.tokens is 0 times in src/retrysafe/x\.py, not once"),
        ("Kind.token", never("new"), r"'a break': in x:Kind\.token, never\('new'\) fits 0 places.*\n  0: self\.old"),
        ("LATER", instead(1, "1"), r"'a break': instead\(1, '1'\) changes nothing in x:LATER"),
        ("Kind.steps", skipping("answer", at=0) & first("answer = 1"), "steps is a generator without the break or"),
    ]:
        with pytest.raises(ValueError, match=words):
            changed(symbol, change)
    with pytest.raises(SyntaxError):
        changed("LATER", instead(1, "(yield)"))
