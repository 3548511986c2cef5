"""The runner passes a server that keeps the contract, and fails each server that breaks a rule in that very rule."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from retrysafe import conformance
from retrysafe.conformance import RULES, Verdict
from tests.conformance import reference
from tests.conformance.reference import Reference

TIMEOUT = 8.0
WAITED_OUT = {"409 for a mismatch": 6.0, "reads the body first": 6.0, "events held back": 6.0}
"""Servers that leave the runner waiting for as long as it is patient, and how long that is."""

CHOICES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "strict": {"key_syntax": "strict", "key_policy": "strong", "required": True},
    "waiting": {"concurrency": "wait", "on_5xx": "store", "on_expired": "refuse"},
    "endpoint": {"operation": "endpoint", "cookies": "replay", "on_large": "error", "on_5xx": "unknown"},
    "statuses": {"concurrent_status": 423, "mismatch_status": 409, "methods": ["POST", "PUT", "PATCH", "DELETE"]},
}

# a server's fault -> the rules that break by it, and the settings that it needs
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "parameters are part of the key": ("K1", {}),
    "quotes are part of the key": ("K2 K4", {}),
    "refuses bare keys": ("K2", {}),
    "takes bare keys": ("K2", {"key_syntax": "strict"}),
    "last line wins": ("K3", {}),
    "takes commas": ("K3", {}),
    "an empty key is none": ("K4", {}),
    "long keys": ("K4", {}),
    "254 characters at most": ("K4", {}),
    "any characters": ("K4", {}),
    "reads the body first": ("K4", {}),
    "malformed strings run unprotected": ("K5", {}),
    "requires a key": ("K6", {}),
    "runs without a required key": ("K6", {"required": True}),
    "guards GET": ("K7", {}),
    "leaves PATCH alone": ("F1 K7", {}),
    "one bucket for all": ("K8", {}),
    "anonymous bucket": ("K8", {}),
    "scopes by token": ("K9", {}),
    "no key policy": ("K11", {"key_policy": "strong"}),
    "fingerprint without method": ("F1", {}),
    "fingerprint without content-type": ("F1", {}),
    "fingerprint without content-encoding": ("F1", {}),
    "fingerprint without if-match": ("F1", {}),
    "fingerprint without if-none-match": ("F1", {}),
    "fingerprint without query": ("F1 F2", {}),
    "fingerprint without body": ("F1 F3 F4 F6 R12", {}),
    "decodes paths": ("F2", {}),
    "strips slashes": ("F2", {}),
    "sorts queries": ("F2", {}),
    "compares JSON by value": ("F3", {}),
    "multipart by bytes": ("F4", {}),
    "fingerprints trace fields": ("F5", {}),
    "409 for a mismatch": ("F6", {}),
    "no mismatch while it runs": ("F6", {}),
    "a mismatch overwrites": ("F6 R25", {}),
    "no Retry-After": ("R1", {}),
    "425 for a duplicate": ("R1", {}),
    "runs them all": ("R1 R9 R19 R25", {}),
    "no marker": ("R2", {}),
    "marker on the first": ("R2", {}),
    "drops fields": ("R2", {}),
    "serialises again": ("R2", {}),
    "plain refusals": ("R3", {}),
    "problems without safe_new_key": ("R3", {}),
    "merges lines": ("R4", {}),
    "stores hop-by-hop": ("R5", {}),
    "stores cookies": ("R6", {}),
    "204 becomes 200": ("R7", {}),
    "binary as text": ("R7", {}),
    "records late": ("R8", {}),
    "fails when it cannot record": ("R9", {}),
    "streams bypass": ("R10", {}),
    "trims bodies": ("R10", {}),
    "large responses bypass": ("R11", {}),
    "large responses are stored": ("R11", {}),
    "events held back": ("R11", {}),
    "large requests bypass": ("R12", {}),
    "no hard limit": ("R12", {}),
    "truncates streams": ("R13", {}),
    "forgets when background work raises": ("R15", {}),
    "background work on replay": ("R15", {}),
    "stores 5xx": ("R16", {}),
    "partial responses are replayed": ("R16", {}),
    "locked for ever after a failure": ("R16", {}),
    "5xx marked as replay": ("R16", {}),
    "work ends with its connection": ("R17", {}),
    "does not renew": ("R19", {}),
    "never expires": ("R21", {}),
    "looks at the resource": ("R22", {}),
    "preconditions first": ("R23", {}),
    "304 on replay": ("R24", {}),
    "drops ETag": ("R24", {}),
    "open without its store": ("R25", {}),
    "stores its conflicts": ("R19 R25", {}),
    "stored as compressed": ("R26", {}),
    "no CORS on what the layer says": ("R26 R27", {}),
    "nothing exposed": ("R27", {}),
    "preflight forbids the key": ("R27", {}),
    "header not published": ("R29", {}),
    "cacheable replays": ("R30", {}),
    "stores every 4xx": ("D1", {}),
    "stores no 4xx": ("D1", {}),
    "effects outlive a 5xx": ("T1", {"mode": "transactional"}),
}


def failed(report: conformance.Report) -> dict[str, str]:
    return {result.rule: str(result) for result in report.of(Verdict.FAILED)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["leased", "transactional"])
@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_a_server_that_keeps_the_contract_passes(choices: dict[str, Any], mode: str) -> None:
    with Reference(mode=mode, **choices) as url:
        report = conformance.run(url, timeout=TIMEOUT)
    assert not failed(report), "\n\n".join(failed(report).values())
    seen = {result.rule for result in report.of(Verdict.PASSED)}
    left_out = {"leased": {"T1"}, "transactional": {"R9", "R19"}}[mode] | (
        {"K11"} if "key_policy" not in choices else set()
    )
    assert {rule for rule in RULES if RULES[rule].visible} - seen == left_out


@pytest.mark.one_of("a server that breaks a rule fails that rule and no other", of=3)
@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_server_that_breaks_a_rule_fails_that_rule_and_no_other(wrong: str) -> None:
    rules, choices = WRONG[wrong]
    server = Reference(wrong, **choices)
    with server as url:
        report = conformance.run(url, timeout=WAITED_OUT.get(wrong, TIMEOUT))
    assert wrong in server._asked_of, "the server was never in a place where it could do that"
    assert sorted(failed(report)) == sorted(rules.split()), "\n\n".join(failed(report).values())


def test_every_visible_rule_is_broken_by_some_server() -> None:
    broken = {rule for rules, _ in WRONG.values() for rule in rules.split()}
    assert broken == {rule for rule in RULES if RULES[rule].visible}


def test_every_wrong_server_is_tried() -> None:
    source = Path(reference.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r'self\.wrong\("([^"]+)"\)', source)) - {"...", "guards nothing"}
    assert named == {wrong for wrong in WRONG if not wrong.startswith("fingerprint without ")}


@pytest.mark.slow
def test_a_server_without_a_layer_passes_only_what_asks_it_to_keep_out_of_the_way() -> None:
    with Reference("guards nothing") as url:
        report = conformance.run(url, timeout=TIMEOUT)
    assert {result.rule for result in report.of(Verdict.PASSED)} == {"K6", "R13", "R27", "R29"}
