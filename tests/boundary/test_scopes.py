"""`scope=`: what a boundary and a claim refuse, with what they take instead."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError
from tests.tables import each_row


async def _awaited() -> str:
    return "green"


def _generated() -> Iterator[str]:
    yield "green"


class _Awaited:
    async def __call__(self) -> str:
        return "green"


NEITHER = "is neither text nor a function: give text such as"
WRONG_SCOPES: dict[str, tuple[Any, str]] = {
    "a number": (7, f"scope=7 {NEITHER}"),
    "a list": (["green"], re.escape(f"scope=['green'] {NEITHER}")),
    "bytes": (b"green", f"scope=b'green' {NEITHER}"),
    "a coroutine function": (_awaited, "is a coroutine function, and is not awaited: give text such as"),
    "an object that is awaited": (_Awaited(), "is a coroutine function, and is not awaited: give text such as"),
    "a generator function": (_generated, "is a generator function, and nothing runs it: give text such as"),
    "a function of an argument": (lambda request: "green", "takes 'request', and is called without arguments: give"),
    "a control character": ("gr\neen", "no control character"),
}


@each_row(("scope", "complaint"), WRONG_SCOPES.values(), ids=WRONG_SCOPES)
def test_a_wrong_scope_is_refused_with_what_it_takes(scope: Any, complaint: str) -> None:
    """By the boundary when it is built, and by a claim before anything is run."""
    with pytest.raises(ConfigurationError, match=complaint):
        Boundary("scoped", store="memory://", scope=scope)
    boundary = Boundary("unscoped", store="memory://", observers=())
    with pytest.raises(ConfigurationError, match=complaint):
        boundary.claim("k", scope=scope)
    with pytest.raises(ConfigurationError, match=complaint):
        boundary.resolve("k", "released", scope=scope)


def test_an_empty_scope_is_refused_by_a_boundary_and_is_nobodys_for_a_claim() -> None:
    with pytest.raises(ConfigurationError, match=r"scope= is empty, .* Is the environment variable or setting"):
        Boundary("scoped", store="memory://", scope="")
    boundary = Boundary("scoped", store="memory://", scope="green", observers=())
    with boundary.claim("k", scope="") as claim:
        assert claim._require_request().scope == ""


@each_row("returned", [7, ["green"]])
def test_a_scope_that_returns_no_text_is_refused(returned: Any) -> None:
    boundary = Boundary("scoped", store="memory://", scope=lambda: returned)
    with pytest.raises(
        ConfigurationError, match=f"returned no text, but a value of type {type(returned).__name__}: give"
    ):
        boundary.claim("k")


@pytest.mark.filterwarnings("error")
def test_a_scope_that_returns_a_coroutine_is_refused_without_a_warning() -> None:
    boundary = Boundary("scoped", store="memory://", scope=lambda: _awaited())  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="a value of type coroutine"):
        boundary.claim("k")


def test_functions_whose_arguments_have_defaults_are_scopes() -> None:
    def tenant(default: str = "green", *rest: str, **options: str) -> str:
        return default

    variable = ContextVar("tenant", default="green")
    for scope in (tenant, variable.get, functools.partial(str, "green")):
        boundary = Boundary("scoped", store="memory://", scope=scope, observers=(), shared=True)
        with boundary.claim("k") as claim:
            assert claim._require_request().scope == "green"


def test_once_names_where_its_scope_comes_from() -> None:
    boundary: Any = Boundary("scoped", store="memory://", observers=())
    with pytest.raises(
        ConfigurationError, match=r"once\(\) has no scope=, .* Boundary\(…, scope=…\) takes text such as"
    ):
        boundary.once(key="order", scope="green")
