"""The layer's own answers: problem details whose type leads to a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retrysafe import errors
from retrysafe.http.problems import BASE, PROBLEMS, Refusal, refusal_of, render

ROOT = Path(__file__).parents[2]
SITE = "https://retrysafe.readthedocs.io/en/latest/"


@pytest.mark.parametrize("code", PROBLEMS)
def test_r3_every_type_is_the_address_of_a_page(code: str) -> None:
    response = render(Refusal(code))
    problem = json.loads(response.body or b"")
    assert f"site_url: {SITE}\n" in (ROOT / "mkdocs.yml").read_text()
    page = ROOT / "docs" / (problem["type"].removeprefix(SITE).rstrip("/") + ".md")
    assert page.read_text().startswith(f"# `{code}`\n")
    assert dict(response.headers)[b"link"].decode() == f'<{problem["type"]}>; rel="describedby"'


@pytest.mark.parametrize("code", PROBLEMS)
def test_r3_what_a_problem_says(code: str) -> None:
    response = render(Refusal(code, "because"))
    assert json.loads(response.body or b"") == {
        "type": f"{BASE}{code}/",
        "title": PROBLEMS[code].title,
        "status": response.status,
        "detail": "because",
        "code": code,
        "safe_new_key": PROBLEMS[code].safe_new_key,
    }
    headers = dict(response.headers)
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-length"] == str(len(response.body or b"")).encode()


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.01, b"2"), (29.5, b"30")])
def test_r1_retry_after_is_whole_seconds_and_never_zero(seconds: float, shown: bytes) -> None:
    response = render(Refusal("in-progress", retry_after=seconds))
    assert dict(response.headers)[b"retry-after"] == shown


NOT_ANSWERED = {errors.ConfigurationError, errors.IllegalTransition}


@pytest.mark.parametrize(
    "kind",
    [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, errors.RetrysafeError) and found is not errors.RetrysafeError
    ],
)
def test_every_error_of_a_claim_has_an_answer_but_those_for_developers(kind: type[errors.RetrysafeError]) -> None:
    error = kind("type", "message") if kind is errors.StoredFailure else kind("host db-17 is down")  # type: ignore[call-arg]
    refusal = refusal_of(error)
    if kind in NOT_ANSWERED:
        assert refusal is None
        return
    assert refusal is not None
    if PROBLEMS[refusal.code].safe_new_key:
        assert kind.safe_new_key, "what is promised to a client must hold for the error"
    if kind not in (errors.InvalidKey, errors.KeyReused):
        assert "db-17" not in refusal.detail, "what concerns the server stays there"


def test_a_conflict_says_when_to_come_back() -> None:
    refusal = refusal_of(errors.InProgress(retry_after=7.2))
    assert refusal is not None
    assert dict(render(refusal).headers)[b"retry-after"] == b"8"


def test_a_mismatch_names_what_differs_and_not_its_value() -> None:
    refusal = refusal_of(errors.KeyReused("The payload differs in: path.", differing=("path",)))
    assert refusal is not None
    assert "path" in refusal.detail
