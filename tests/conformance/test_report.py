"""`retrysafe conformance http` as a command, and its reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from retrysafe import conformance
from retrysafe.conformance import RULES, Capabilities, Result, Verdict, capabilities
from retrysafe.conformance.report import as_json, junit, markdown
from retrysafe.errors import ConfigurationError
from tests.conformance.reference import Reference
from tests.tables import each_row

COMMAND = [sys.executable, "-m", "retrysafe", "conformance", "http"]


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_a_server_without_fault_gives_exit_code_0(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with Reference() as url:
        done = check(url, "--format", "json", "--output", str(file), "--timeout", "4")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(file.read_text())
    assert done.stdout == f"{url}: {told['counts']['passed']} passed, 0 failed, 2 skipped, 5 not visible\n"
    assert [one["rule"] for one in told["results"]] == list(RULES)
    assert (told["name"], told["mode"], told["server"]) == ("reference", "leased", "asyncio")


@pytest.mark.slow
def test_a_broken_rule_gives_exit_code_1_and_says_what_was_sent_expected_and_received() -> None:
    with Reference("merges lines") as url:
        done = check(url, "--only", "R2, R4,R14")
    assert (done.returncode, done.stderr) == (1, "")
    assert "leased mode: 1 passed, 1 failed, 0 skipped, 1 not visible." in done.stdout
    assert "\n## R4 failed\n" in done.stdout
    assert "- expected: the lines Link: ['</a>; rel=next', '</b>; rel=prev'] on the replay\n" in done.stdout
    assert "- came: ['</b>; rel=prev']\n" in done.stdout
    assert 'POST /base/act Idempotency-Key: "' in done.stdout


@pytest.mark.slow
def test_the_mode_and_the_capabilities_can_be_given(tmp_path: Path) -> None:
    able = tmp_path / "able.json"
    able.write_text('{"fixture": 1, "features": ["gate"], "unsupported": {"K2": "they all quote"}}')
    with Reference(mode="transactional") as url:
        done = check(url, "--mode", "transactional", "--capabilities", str(able), "--only", "K2,R4,R9,R10")
    assert done.returncode == 0
    assert "transactional mode: 1 passed, 0 failed, 3 skipped, 0 not visible." in done.stdout
    assert "the server says: they all quote" in done.stdout
    assert "means nothing in transactional mode." in done.stdout
    assert "needs the feature 'stream': not offered" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "'nonsense' is not the URL of an HTTP server"),
        (["http://127.0.0.1:99999"], "is not a URL"),
        (["http://127.0.0.1:1?a=b"], "can't be part of a server's address"),
        (["http://127.0.0.1:1"], "http://127.0.0.1:1 can't be reached"),
        (["http://127.0.0.1:1", "--only", "K1,K99"], "there is no rule 'K99'"),
        (["http://127.0.0.1:1", "--timeout", "0"], "a number of seconds above 0"),
        (["http://127.0.0.1:1", "--output", "/nowhere/at/all"], "the folder does not exist"),
        (["http://127.0.0.1:1", "--capabilities", "/nowhere/at/all"], "No such file"),
        (["http://127.0.0.1:1", "--capabilities", __file__], "not JSON"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(arguments: list[str], complaint: str) -> None:
    done = check(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_server_without_the_fixture_cannot_be_checked() -> None:
    with Reference() as url:
        done = check(url.replace("/base", "/elsewhere"))
    assert done.returncode == 2
    assert "has to offer the conformance fixture" in done.stderr


RESULTS = [
    Result("K1", Verdict.PASSED, expected="…", seconds=0.25),
    Result("K4", Verdict.PASSED),
    Result("R4", Verdict.FAILED, "", "two | lines", "<one>", ["POST /act -> 200"], 0.5),
    Result("R9", Verdict.SKIPPED, "no store"),
    Result("R14", Verdict.NOT_VISIBLE, "inside"),
]
REPORT = conformance.Report("http://h", Capabilities(name="mine", version="2", server="s"), RESULTS)


def test_markdown() -> None:
    lines = markdown(REPORT).splitlines()
    assert lines[0] == "# mine 2 on s: HTTP conformance"
    assert lines[2] == "http://h, leased mode: 2 passed, 1 failed, 1 skipped, 1 not visible."
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 2 + len(RESULTS)
    assert {row.replace("\\|", "").count("|") for row in rows} == {6}
    assert rows[3].endswith("| not seen: that the store isn't touched either |")
    assert rows[4].endswith("| came: <one> |")
    assert lines[-3:] == ["```text", "POST /act -> 200", "```"]


def test_json() -> None:
    told: dict[str, Any] = json.loads(as_json(REPORT))
    assert told["counts"] == {"passed": 2, "failed": 1, "skipped": 1, "not visible": 1}
    failed = told["results"][2]
    assert (failed["level"], failed["expected"], failed["came"]) == ("MUST", "two | lines", "<one>")
    assert (failed["sent"], failed["source"]) == (["POST /act -> 200"], "H§5.3")


def test_junit() -> None:
    suite = ET.fromstring(junit(REPORT))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "5",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
        "time": "0.750",
    }
    cases = {str(case.get("name")).split()[0]: case for case in suite}
    failure = cases["R4"].find("failure")
    assert failure is not None
    assert failure.get("message") == "expected two | lines; came <one>"
    assert "POST /act -> 200" in str(failure.text)
    skipped = [cases[rule].find("skipped") for rule in ("R9", "R14")]
    assert [one.get("message") for one in skipped if one is not None] == ["skipped: no store", "not visible: inside"]
    assert len(cases["K1"]) == 0


@each_row(
    "document",
    [
        None,
        {},
        {"fixture": 2},
        {"fixture": 1, "colour": "red"},
        {"fixture": 1, "mode": "leasing"},
        {"fixture": 1, "mode": 7},
        {"fixture": 1, "features": "gate"},
        {"fixture": 1, "features": ["gates"]},
        {"fixture": 1, "limits": {"lease": "long"}},
        {"fixture": 1, "limits": {"lease": 0}},
        {"fixture": 1, "limits": {"least": 1}},
        {"fixture": 1, "choices": {"key_syntax": "loose"}},
        {"fixture": 1, "choices": {"syntax": "lenient"}},
        {"fixture": 1, "unsupported": {"K1": 1}},
        {"fixture": 1, "openapi": True},
    ],
)
def test_a_capability_document_that_cannot_be_meant_is_refused(document: Any) -> None:
    with pytest.raises(ConfigurationError):
        capabilities.parse(document)


def test_every_rule_says_what_cannot_be_seen_of_it() -> None:
    for name, rule in RULES.items():
        assert rule.text.endswith("."), name
        assert rule.source, name
        assert rule.visible or rule.unseen, name
        assert rule.needs <= capabilities.FEATURES, name
