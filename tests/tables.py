"""Tests of many small cases are one item: `each_row` runs a test for each of its rows, and names those that fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from _pytest._io.saferepr import saferepr
from _pytest.mark import ParameterSet

Ids = Sequence[str] | Callable[[Any], Any] | None
LONGEST = 200
"""Characters of a row's name."""


def each_row(
    names: str | Sequence[str], cases: Iterable[Any], ids: Ids = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `pytest.mark.parametrize`, but in one test: for what takes milliseconds.

    Rows share fixtures, but for `tmp_path`, `monkeypatch` and `capsys`. Every row is run; if one fails its error is
    raised with the row's name, if more fail all of them in a group. A row that is skipped is passed over, unless all
    are.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_row(number, arguments, case, ids) for number, case in enumerate(cases)]
    assert table, f"{names}: there are no rows"

    def of_every_row(test: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(*given: Any, **fixtures: Any) -> None:
            outcome = _Outcome(len(table))
            for label, values in table:
                with outcome.of(label), _own(fixtures, label) as own:
                    test(*given, **own, **values)
            outcome.tell()

        @functools.wraps(test)
        async def arun(*given: Any, **fixtures: Any) -> None:
            outcome = _Outcome(len(table))
            for label, values in table:
                with outcome.of(label), _own(fixtures, label) as own:
                    await test(*given, **own, **values)
            outcome.tell()

        made: Any = arun if inspect.iscoroutinefunction(test) else run
        left = [each for each in signature.parameters.values() if each.name not in arguments]
        made.__signature__ = signature.replace(parameters=left)
        return made

    return of_every_row


class _Outcome:
    """Of all rows of a table."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.failed: list[BaseException] = []
        self.labels: list[str] = []
        self.skipped: list[BaseException] = []

    @contextmanager
    def of(self, label: str) -> Iterator[None]:
        """Take down how a row ends."""
        try:
            yield
        except pytest.skip.Exception as skipped:
            self.skipped.append(skipped)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a row may fail with anything
            error.add_note(f"row {label}")
            self.failed.append(error)
            self.labels.append(label)

    def tell(self) -> None:
        """Raise what has failed."""
        if len(self.failed) == 1:
            raise self.failed[0]
        if self.failed:
            rows = "; ".join(f"row {label}" for label in self.labels)
            raise BaseExceptionGroup(f"{len(self.failed)} of {self.count} rows failed: {rows}", self.failed)
        if len(self.skipped) == self.count:
            raise self.skipped[0]


@contextmanager
def _own(fixtures: dict[str, Any], label: str) -> Iterator[dict[str, Any]]:
    """The fixtures for one row, which has a folder and patches of its own, and what earlier rows printed taken away."""
    own = dict(fixtures)
    with ExitStack() as stack:
        if "tmp_path" in own:
            own["tmp_path"] = own["tmp_path"] / f"row-{label.partition(':')[0]}"
            own["tmp_path"].mkdir(exist_ok=True)
        if "monkeypatch" in own:
            own["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
        if "capsys" in own:
            own["capsys"].readouterr()
        yield own


def _row(number: int, names: list[str], case: Any, ids: Ids) -> tuple[str, dict[str, Any]]:
    """The row's name, and its arguments."""
    name = None
    if isinstance(case, ParameterSet):
        assert not case.marks, "a row of a table has no marks: make it a case of parametrize"
        name, values = case.id, case.values
    else:
        values = tuple(case) if len(names) > 1 else (case,)
    if callable(ids):
        name = "-".join(str(ids(value)) for value in values)
    elif ids is not None:
        name = [*ids][number]
    shown = str(name or ", ".join(map(saferepr, values)))
    return f"{number}: {shown[:LONGEST]}", dict(zip(names, values, strict=True))
