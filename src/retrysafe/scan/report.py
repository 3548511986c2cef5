"""Findings as text, JSON and SARIF 2.1.0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import retrysafe
from retrysafe.scan.findings import Finding, Rule
from retrysafe.scan.rules.catalogue import EVERY_RULE

SITE = "https://retrysafe.readthedocs.io/en/latest/"
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def url_of(page: str) -> str:
    return f"{SITE}{page.removesuffix('.md')}/"


def text(findings: Iterable[Finding]) -> Iterator[str]:
    for one in findings:
        yield f"{one.shown}:{one.line}:{one.column}: {one.rule.id} {one.severity.value}: {one.message}"


def data(one: Finding) -> dict[str, Any]:
    return {
        "rule": one.rule.id,
        "title": one.rule.title,
        "severity": one.severity.value,
        "path": one.shown,
        "line": one.line,
        "column": one.column,
        "in": one.context,
        "message": one.message,
        "fix": one.rule.fix,
        "page": url_of(one.rule.page),
        "fingerprint": one.fingerprint,
    }


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    driver = {
        "name": "retrysafe",
        "version": retrysafe.__version__,
        "informationUri": url_of("how-to/scan.md"),
        "rules": [_rule(one) for one in EVERY_RULE],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [_result(one) for one in findings]}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": f"{rule.title}."},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.fix},
        "helpUri": url_of(rule.page),
        "defaultConfiguration": {"level": rule.severity.value},
    }


def _result(one: Finding) -> dict[str, Any]:
    shown = one.shown.removeprefix("./")
    location = {"uri": ("file://" if shown.startswith("/") else "") + quote(shown)}
    region = {"startLine": one.line, "startColumn": one.column}
    return {
        "ruleId": one.rule.id,
        "ruleIndex": EVERY_RULE.index(one.rule),
        "level": one.severity.value,
        "message": {"text": one.message},
        "locations": [{"physicalLocation": {"artifactLocation": location, "region": region}}],
        "partialFingerprints": {"retrysafe/v1": one.fingerprint},
    }
