"""The check of clients passes one that keeps the rules, and fails each that breaks one in that very rule."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from retrysafe import ConfigurationError
from retrysafe.cli import main
from retrysafe.conformance import RULES, Capabilities, Verdict, run, run_client
from retrysafe.conformance.clients import SCENARIOS
from retrysafe.conformance.profiles import PROFILES, SERVERS
from retrysafe.conformance.report import FORMATS
from retrysafe.conformance.rules import CLIENT_RULES
from tests.conformance.reference import Reference
from tests.tables import each_row

pytestmark = pytest.mark.slow

CLIENT = [sys.executable, str(Path(__file__).with_name("client.py"))]
OURS = """
import os
import httpx
from retrysafe.http.client import Host, Retries
from retrysafe.http.client.httpx import RetryTransport
url = os.environ["RETRYSAFE_UPSTREAM"]
host = Host(url.removesuffix("/orders"), header="X-Key")
with httpx.Client(transport=RetryTransport(Retries([host])), timeout=1) as client:
    client.post(url, json={"order": 1})
"""
BY_MCP = """
import os, sys, uuid
import anyio
from mcp import Client
async def main():
    key = str(uuid.uuid4())
    for attempt in range(3):
        try:
            with anyio.fail_after(2):
                async with Client(os.environ["RETRYSAFE_UPSTREAM"], mode="2026-07-28") as client:
                    meta = {sys.argv[1]: key if sys.argv[2:] == [] else str(attempt)}
                    await client.call_tool("book", {"order": 1}, meta=meta)
            return
        except BaseException:
            pass
anyio.run(main)
"""
BY_A2A = """
import os, sys, uuid
import httpx
key, rpc = str(uuid.uuid4()), sys.argv[1] == "rpc"
for attempt in range(3):
    message = {"message": {"messageId": key if sys.argv[2:] == [] else str(attempt), "parts": []}}
    body = {"jsonrpc": "2.0", "id": attempt, "method": "SendMessage", "params": message} if rpc else message
    try:
        answer = httpx.post(os.environ["RETRYSAFE_UPSTREAM"], json=body, timeout=2).json()
        assert (answer.get("id") == attempt) is rpc
        assert "message" in answer.get("result", answer)
        break
    except Exception:
        pass
"""

# a client's fault -> the rules that it breaks, and what is said of it
WRONG = {
    "no key": ("invalid", "a request without one Idempotency-Key"),
    "new keys": ("lost cut", "2 keys for one operation"),
    "other body": ("lost", "another request under the same key"),
    "insists": ("reused lie", "3 keys for one operation"),
    "hasty": ("busy throttled", "a retry after 0."),
    "deaf": ("final", "3 requests"),
    "gives up": ("lost failed", "1 request"),
    "silent": ("invalid", "no request"),
    "for ever": ("down", "the client did not end within 2 s"),
}


def test_a_client_that_keeps_the_rules_passes() -> None:
    assert set(SCENARIOS) == set(CLIENT_RULES)
    assert not set(CLIENT_RULES) & set(RULES)
    report = run_client(CLIENT)
    assert report.passed, [str(one) for one in report.of(Verdict.FAILED)]
    assert len(report.results) == len(SCENARIOS)
    ours = run_client([sys.executable, "-c", OURS], header="X-Key", only=["lost", "reused", "lie", "final"])
    assert ours.passed, [str(one) for one in ours.of(Verdict.FAILED)]


def test_a_client_that_breaks_a_rule_fails_in_it(subtests: pytest.Subtests) -> None:
    for fault, (rules, said) in WRONG.items():
        with subtests.test(fault):
            report = run_client([*CLIENT, fault], only=rules.split(), timeout=2 if fault == "for ever" else 30)
            assert [one.rule for one in report.of(Verdict.FAILED)] == rules.split()
            assert all(one.came.startswith(said) for one in report.results[:1]), report.results
            assert all(FORMATS[name](report) for name in FORMATS)


def test_the_command_checks_a_client(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["conformance", "client", "--only", "reused", "--json", "--", *CLIENT]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["passed"] == 1
    assert main([*command, "insists"]) == 1
    with pytest.raises(ConfigurationError, match="there is no rule 'losst' for clients"):
        run_client(CLIENT, only=["losst"])
    with pytest.raises(ConfigurationError, match="can't be run"):
        run_client([str(tmp_path / "nothing")])


@each_row(
    "name, script, kind",
    [
        ("mcp", BY_MCP, "com.shop/idempotency_key"),
        ("a2a", BY_A2A, "rpc"),
        ("a2a", BY_A2A, "rest"),
    ],
)
def test_the_key_of_an_agent_is_in_the_body(name: str, script: str, kind: str) -> None:
    command, rules = [sys.executable, "-c", script, kind], ["lost", "reused"]
    report = run_client(command, profile=PROFILES[name], only=rules)
    assert [one.verdict.value for one in report.results] == ["passed", "skipped"], report.results
    report = run_client([*command, "new"], profile=PROFILES[name], only=["lost"])
    assert [one.came[:6] for one in report.results] == ["2 keys"]


def test_profiles_go_before_the_contract() -> None:
    rules = ["K1", "K6", "F6", "R1", "R16"]
    keeping = {"acp": {"required": True}, "stripe": {"mismatch_status": 400, "on_5xx": "store"}}
    broken = {"acp": ["K6"], "stripe": ["F6", "R16"]}
    for name, profile in ((name, PROFILES[name]) for name in SERVERS):
        with Reference("", **keeping[name]) as url:
            report = run(url, profile=profile, only=rules)
            assert [one.rule for one in report.results if one.verdict is not Verdict.PASSED] == ["K1"], report.results
            assert [one.rule for one in report.of(Verdict.SKIPPED)] == ["K1"]
        with Reference() as url:
            report = run(url, profile=profile, only=rules)
            assert [one.rule for one in report.of(Verdict.FAILED)] == broken[name], name
    assert PROFILES["acp"].over(Capabilities()).choice("required") is True
