"""`retrysafe scan`: exit codes, formats, the baseline, and allowances in the code."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from retrysafe.cli import main
from retrysafe.scan.rules.catalogue import RULES
from tests.tables import each_row

SCHEMA = Path(__file__).parent / "schemas" / "sarif-2.1.0.json"
HANDLER = RULES[0]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with one module that has one finding."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shop.py"
    path.write_text(HANDLER.wrong, encoding="utf-8")
    return path


def test_findings_make_exit_code_1(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan"]) == 1
    out = capsys.readouterr()
    assert out.out.startswith("shop.py:11:1: RS101 warning: FastAPI handler of POST without a guard creates a row")
    assert "1 findings in 1 files: 1 of RS101" in out.out
    assert main(["scan", "--fail-on", "error"]) == 0
    assert main(["scan", "--rule", "RS501"]) == 0


def test_safe_code_makes_exit_code_0(shop: Path) -> None:
    shop.write_text(HANDLER.right, encoding="utf-8")
    assert main(["scan", "shop.py"]) == 0


@each_row("options", [["--rule", "RS999"], ["nothing.py"], ["--baseline", "nothing"], ["--exclude", "*.py"]])
def test_impossible_requests_make_exit_code_2(
    shop: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", *options]) == 2
    assert capsys.readouterr().err.startswith("retrysafe: ")


def test_json_names_place_rule_and_fix(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["scan", "--format", "json"])
    told = capsys.readouterr().out
    main(["scan", "--json"])
    assert capsys.readouterr().out == told
    found = json.loads(told)
    assert (found["rule"], found["path"], found["line"], found["in"]) == ("RS101", "shop.py", 11, "create")
    assert found["fix"] == HANDLER.fix
    assert len(found["fingerprint"]) == 32


def test_sarif_is_valid(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop.with_name("a b#é.py").write_text("def f(:", encoding="utf-8")
    assert main(["scan", "--format", "sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    jsonschema.validate(log, json.loads(SCHEMA.read_text(encoding="utf-8")))
    run = log["runs"][0]
    assert {one["ruleId"] for one in run["results"]} == {"RS001", "RS101"}
    assert all(run["tool"]["driver"]["rules"][one["ruleIndex"]]["id"] == one["ruleId"] for one in run["results"])
    assert "a%20b%23%C3%A9.py" in json.dumps(log)


def test_a_baseline_survives_lines_that_move(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "--write-baseline", "known.json"]) == 0
    shop.write_text(f"'''A docstring.'''\n\n# and a comment\n{HANDLER.wrong}", encoding="utf-8")
    assert main(["scan", "--baseline", "known.json"]) == 0
    assert "1 in the baseline" in capsys.readouterr().out


def test_a_baseline_does_not_hide_what_is_new(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["scan", "--write-baseline", "known.json"])
    second = HANDLER.wrong.partition("app = FastAPI()")[2].replace("create(", "copy(")
    shop.write_text(f"{HANDLER.wrong}{second}", encoding="utf-8")
    assert main(["scan", "--baseline", "known.json"]) == 1
    assert "in copy" not in capsys.readouterr().out


def test_equal_code_twice_in_one_function_is_two_findings(shop: Path) -> None:
    line = "        requests.post('x')\n"
    head = "import requests\nfrom django.db import transaction\n\ndef f():\n    with transaction.atomic():\n"
    shop.write_text(head + line, encoding="utf-8")
    main(["scan", "--write-baseline", "known.json"])
    shop.write_text(head + line + line, encoding="utf-8")
    assert main(["scan", "--baseline", "known.json"]) == 1


def test_a_baseline_tells_what_is_gone(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["scan", "--write-baseline", "known.json"])
    shop.write_text(HANDLER.right, encoding="utf-8")
    assert main(["scan", "--baseline", "known.json"]) == 0
    assert "1 of the baseline are gone" in capsys.readouterr().out


@each_row("text", ["[]", "{}", '{"version": 2, "findings": {}}', '{"version": 1, "findings": []}', "\xff"])
def test_a_file_that_is_no_baseline_is_refused(shop: Path, text: str) -> None:
    shop.with_name("known.json").write_text(text, encoding="latin-1")
    assert main(["scan", "--baseline", "known.json"]) == 2


def allowed(comment: str) -> str:
    return HANDLER.wrong.replace('@app.post("/orders")', f'@app.post("/orders")  {comment}')


def test_a_finding_is_allowed_with_a_reason(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop.write_text(allowed("# retrysafe: allow[RS101] the table has a unique constraint"), encoding="utf-8")
    assert main(["scan"]) == 0
    assert capsys.readouterr().out == "0 findings in 1 files\n"


@each_row(
    ("comment", "expected"),
    [
        ("# retrysafe: allow[RS101]", {"RS101", "RS002"}),
        ("# retrysafe: allow[RS501] a reason", {"RS101", "RS002"}),
        ("# retrysafe: allow[] a reason", {"RS101", "RS002"}),
        ("x = '# retrysafe: allow[RS101] a text'", {"RS001"}),
    ],
)
def test_an_allowance_needs_a_finding_and_a_reason(
    shop: Path, comment: str, expected: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write_text(allowed(comment), encoding="utf-8")
    assert main(["scan"]) == 1
    assert {line.split()[1] for line in capsys.readouterr().out.splitlines()[:-1]} == expected


def test_a_comment_elsewhere_allows_nothing(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop.write_text(f"# retrysafe: allow[RS101] a reason\n{HANDLER.wrong}", encoding="utf-8")
    assert main(["scan"]) == 1
    assert "allows nothing" in capsys.readouterr().out


def test_the_hook_names_the_command() -> None:
    hook = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    assert "entry: retrysafe scan" in hook
    assert "pass_filenames: false" in hook
