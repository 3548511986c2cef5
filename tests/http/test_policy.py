"""Choices, checked when they are made; routes, by method and path."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe.errors import ConfigurationError
from retrysafe.http.policy import Policy, policy_of
from retrysafe.http.routes import Routes
from tests.tables import each_row


def test_options_that_are_not_chosen_have_their_default() -> None:
    assert policy_of({}) == Policy()


@each_row(
    ("options", "named"),
    [
        ({"requierd": True}, "requierd"),
        ({"key_syntax": "loose"}, "key_syntax"),
        ({"key_policy": "secret"}, "key_policy"),
        ({"mismatch_status": 500}, "mismatch_status"),
        ({"concurrent_status": 200}, "concurrent_status"),
        ({"on_5xx": "retry"}, "on_5xx"),
        ({"on_large": "drop"}, "on_large"),
        ({"on_store_error": "ignore"}, "on_store_error"),
        ({"operation": "path"}, "operation"),
        ({"body_limit": -1}, "body_limit"),
        ({"response_limit": "1M"}, "response_limit"),
        ({"methods": ["post"]}, "post"),
        ({"methods": ["GET"]}, "GET"),
        ({"headers": "ETag"}, "headers"),
        ({"secrets": "Set-Cookie"}, "secrets"),
        ({"routes": {"payments": "required"}}, "payments"),
        ({"routes": {"/payments": "on"}}, "/payments"),
    ],
)
def test_options_that_cannot_be_kept_are_refused_by_name(options: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        policy_of(options)


def test_an_allow_list_that_names_a_secret_allows_it() -> None:
    assert policy_of({"headers": ["Set-Cookie", "ETag"]}).secrets >= {b"set-cookie"}


ROUTES = Routes(
    {
        "POST /payments": "required",
        "/accounts/*/transfers": "required",
        "/internal/**": "off",
        "/files/*.txt": "optional",
        "/a.b": "off",
    }
)


@each_row(
    ("method", "path", "need"),
    [
        ("POST", "/payments", "required"),
        ("PATCH", "/payments", None),
        ("POST", "/payments/", None),
        ("PATCH", "/accounts/17/transfers", "required"),
        ("POST", "/accounts/17/18/transfers", None),
        ("POST", "/internal/a/b", "off"),
        ("POST", "/internal/a\nb", "off"),
        ("POST", "/internal", None),
        ("POST", "/files/a.txt", "optional"),
        ("POST", "/aXb", None),
    ],
)
def test_k6_the_first_pattern_that_matches_counts(method: str, path: str, need: str | None) -> None:
    assert ROUTES.need(method, path) == need


def test_k6_without_a_matching_pattern_required_decides() -> None:
    assert Policy(required=True, routes=ROUTES).need("POST", "/other") == "required"
    assert Policy(routes=ROUTES).need("POST", "/other") == "optional"
