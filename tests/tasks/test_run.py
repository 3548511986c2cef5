"""`retrysafe run`: a command once for each key, its exit code and output replayed, and what signals leave."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from retrysafe.cli import main
from tests.faults.helpers import until
from tests.processes import PATIENCE, Child, environment

pytestmark = pytest.mark.slow


def command(path: Path, key: str, *options: str) -> tuple[str, ...]:
    store = f"sqlite:///{path / 'keys.db'}"
    return (sys.executable, "-m", "retrysafe", "run", "--store", store, "--key", key, "--lease", "1s", *options, "--")


def run(path: Path, key: str, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    given = (*command(path, key, *options), "sh", "-c", script)
    return subprocess.run(given, capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)


def test_a_command_is_run_once_and_then_replayed(tmp_path: Path) -> None:
    script = f"echo ran >> {tmp_path}/ran; echo $RETRYSAFE_KEY $RETRYSAFE_TOKEN; echo careful >&2; exit 3"
    first, then = run(tmp_path, "a", script), run(tmp_path, "a", script)
    assert (first.returncode, first.stdout) == (then.returncode, then.stdout)
    assert (first.returncode, then.stderr) == (3, "careful\n")
    key, token = first.stdout.split()
    assert len(key) == 36
    assert int(token) > 0
    assert (tmp_path / "ran").read_text() == "ran\n"
    other = run(tmp_path, "a", "true")
    assert (other.returncode, "another command" in other.stderr) == (2, True)
    large = [run(tmp_path, "large", "seq 1 40000; sleep 60 &") for _ in range(2)]
    assert large[0].stdout.endswith("39999\n40000\n")
    assert large[1].stdout == large[0].stdout[-(64 << 10) :]


def test_a_command_is_run_once_in_each_scope(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scopes = ("--scope=blue",), ("--scope=green",), ("--scope=blue",), ("--scope=",), ()
    blue, green, again, *without = [run(tmp_path, "a", "echo $RETRYSAFE_KEY", *scope).stdout for scope in scopes]
    assert (again, without[1]) == (blue, without[0])
    assert len({blue, green, *without}) == 3
    named = ("a", "--scope", "blue", "--store", f"sqlite:///{tmp_path / 'keys.db'}")
    assert main(["keys", "show", *named]) == 0
    assert ["scope", "blue"] in map(str.split, capsys.readouterr().out.splitlines())


def test_an_operator_is_shown_the_end_of_a_command_that_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "failed", "seq 1 1000; echo careful >&2; exit 3")
    run(tmp_path, "done", "echo secret")
    run(tmp_path, "settled", "kill -9 $$")
    store = ("--store", f"sqlite:///{tmp_path / 'keys.db'}")
    assert main(["keys", "resolve", "settled", *store, "--as=completed", '--result={"code": 3, "stdout": [1]}']) == 0
    shown = {}
    for key in ("failed", "done", "settled"):
        capsys.readouterr()
        assert main(["keys", "show", key, *store, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        shown[key] = [told.get(name) for name in ("exit_code", "stdout", "stderr")]
    code, stdout, stderr = shown["failed"]
    assert (code, stdout[-9:], len(stdout), stderr) == (3, "999\n1000\n", 2000, "careful\n")
    assert (shown["done"], shown["settled"]) == ([0, None, None], [None, None, None])
    assert main(["keys", "show", "failed", *store]) == 0
    text = capsys.readouterr().out
    assert ["exit", "code", "3"] in map(str.split, text.splitlines())
    assert "\n  1000\nend of stderr:\n  careful\n" in text


@pytest.mark.parametrize("stopped", [False, True])
def test_an_output_is_passed_on_whole_to_a_reader_that_pauses(tmp_path: Path, *, stopped: bool) -> None:
    """A signal after the command's end ends the wait for the reader, and not the command's outcome."""
    script = f"seq 1 20000; touch {tmp_path}/ended"
    given = (*command(tmp_path, "a"), "sh", "-c", script)
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True, env=environment()) as first:
        until((tmp_path / "ended").exists)
        with pytest.raises(subprocess.TimeoutExpired):  # longer than it waits for a process that was left behind
            first.wait(2)
        if stopped:
            first.send_signal(signal.SIGTERM)
            assert first.wait(PATIENCE) == 0
        assert first.stdout is not None
        assert first.stdout.read().endswith("\n20000\n") == (not stopped)
    assert first.returncode == 0
    assert run(tmp_path, "a", script).stdout.endswith("\n20000\n") or stopped


def test_a_command_that_did_not_do_its_work_is_run_again(tmp_path: Path) -> None:
    script = f"echo >> {tmp_path}/ran; test $(wc -l < {tmp_path}/ran) = 2 || exit 75"
    assert [run(tmp_path, "a", script).returncode for _ in range(3)] == [75, 0, 0]
    fails = f"echo >> {tmp_path}/failed; exit $((2 - $(wc -l < {tmp_path}/failed)))"
    assert [run(tmp_path, "d", fails, "--effects", "keyed").returncode for _ in range(3)] == [1, 0, 0]
    assert run(tmp_path, "b", "exit 0", "--window", "nonsense").returncode == 2
    missing = subprocess.run((*command(tmp_path, "c"), "/nowhere"), capture_output=True, text=True, env=environment())
    assert (missing.returncode, "Nothing was run" in missing.stderr) == (2, True)
    assert run(tmp_path, "a", "true", "--store", "redis://127.0.0.1:1/0").returncode == 75


@pytest.mark.parametrize("effects", ["external", "keyed"])
def test_a_command_that_was_killed_is_in_doubt(tmp_path: Path, effects: str) -> None:
    killed = [run(tmp_path, "a", "kill -9 $$", "--effects", effects).returncode for _ in range(2)]
    assert killed == ([137, 2] if effects == "external" else [137, 137])


@pytest.mark.parametrize(
    ("given", "code", "output"),
    [
        ('"saved 3 files"', 0, "saved 3 files\n"),
        ("null", 0, ""),
        ("3", 0, "3\n"),
        ('{"code": 3}', 3, ""),
        ('{"code": 0, "stdout": "saved"}', 0, "saved"),
        ('{"code": "0"}', 0, '{"code": "0"}\n'),
        ('{"files": 3}', 0, '{"files": 3}\n'),
        ('[0, "", ""]', 0, '[0, "", ""]\n'),
        ('{"$": ["object", "End", {}]}', 2, ""),
    ],
)
def test_an_outcome_in_doubt_is_settled_to_output_or_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, code: int, output: str
) -> None:
    assert run(tmp_path, "a", "kill -9 $$").returncode == 137
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    assert main(["keys", "show", "a", "--store", store]) == 0
    assert """--as completed --result '"TEXT"'""" in capsys.readouterr().out
    assert main(["keys", "resolve", "a", "--store", store, "--as", "completed", "--result", given]) == 0
    again = run(tmp_path, "a", "kill -9 $$")
    assert (again.returncode, again.stdout, "Traceback" in again.stderr) == (code, output, False)


def test_the_end_of_a_command_is_stored_when_the_store_comes_back(tmp_path: Path) -> None:
    script = f"echo began; while ! test -e {tmp_path}/gate; do sleep 0.05; done; echo worked"
    options = ("--lease", "60s", "--store", f"sqlite:///{tmp_path / 'keys.db'}?busy=0.02s")
    with Child(*command(tmp_path, "a", *options), "sh", "-c", script) as first:
        first.until("began")
        with closing(sqlite3.connect(tmp_path / "keys.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            (tmp_path / "gate").touch()
            until(lambda: "settle_deferred" in first.errors)
            with pytest.raises(subprocess.TimeoutExpired):  # longer than it needs to try once more
                first.process.wait(2)
        assert first.ends() == 0
        assert "result_not_stored" not in first.errors
    assert run(tmp_path, "a", script).stdout == "began\nworked\n"


def test_a_second_one_meanwhile_is_told_to_come_again_and_signals_are_passed_on(tmp_path: Path) -> None:
    script = "trap 'echo stopped; exit 5' TERM; echo began; while :; do sleep 0.05; done"
    with Child(*command(tmp_path, "a"), "sh", "-c", script) as first:
        first.until("began")
        assert run(tmp_path, "a", script).returncode == 75
        first.process.send_signal(signal.SIGTERM)
        assert first.hears() == "stopped"
        assert first.ends() == 5
    assert run(tmp_path, "a", script).returncode == 5


def test_a_command_whose_lease_is_lost_is_told_to_end(tmp_path: Path) -> None:
    script = "trap 'echo stopped; exit 5' TERM; echo began; while :; do sleep 0.05; done"
    with Child(*command(tmp_path, "a"), "sh", "-c", script) as first:
        first.until("began")
        with closing(sqlite3.connect(tmp_path / "keys.db", timeout=30)) as other, other:
            other.execute("DELETE FROM retrysafe_records")
        assert first.hears() == "stopped"
        assert first.ends() == 2
