"""The public names of `retrysafe.testing`: pinned, documented, typed, and imported when they are used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from retrysafe import testing
from tests.tables import each_row
from tests.testing.test_plugin import SOURCES

NAMES = {
    "AsyncHarness", "Clock", "ConsumerBench", "ConsumerFeatures", "ConsumerSuite", "FaultyBroker", "Harness",
    "Outcome", "PublisherFeatures", "PublisherSuite", "Publishing", "StoreSuite", "SyncHarness", "aassert_once",
    "aconcurrently", "age", "assert_once", "concurrently", "crash_points", "redelivered",
}  # fmt: skip


def test_the_names_are_pinned() -> None:
    assert set(testing.__all__) == set(dir(testing)) == NAMES


@each_row("name", sorted(NAMES))
def test_every_name_is_there_documented_and_typed(name: str) -> None:
    found = getattr(testing, name)
    assert inspect.getdoc(found)
    assert name in (Path(__file__).parents[1] / "typing/testing.py").read_text().split("boundary = Boundary", 1)[1]


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        testing.nothing  # noqa: B018


@pytest.mark.slow
def test_a_name_is_imported_when_it_is_used() -> None:
    probe = (
        "import sys, retrysafe; before = set(sys.modules); import retrysafe.testing as t; "
        "print(*sorted(name for name in set(sys.modules) - before if name.startswith('retrysafe'))); "
        "t.redelivered; print('pytest' in sys.modules)"
    )
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, env={"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["retrysafe.testing", "False"]
