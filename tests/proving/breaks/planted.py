"""Tests that end in every way: to see that only a failure in a test's own body counts. No run collects this file."""

from __future__ import annotations

import pytest

from retrysafe.protocol.transitions import next_token


@pytest.fixture
def broken_fixture() -> None:
    raise AssertionError


def test_passes() -> None:
    assert next_token(0, 0) == 1 or next_token(1, 0) == 0


def test_fails() -> None:
    assert next_token(5, 0) == 6, "the copy of the source has the probe's break"


def test_errs() -> None:
    [][next_token(5, 0)]


def test_is_skipped() -> None:
    pytest.skip("as a test whose service is absent")


def test_fails_before_it_begins(broken_fixture: None) -> None:
    raise AssertionError


def test_is_no_program() -> None:
    nothing  # type: ignore[name-defined]  # noqa: B018, F821
