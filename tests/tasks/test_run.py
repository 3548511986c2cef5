"""`retrysafe run`: a command once for each key, its exit code and output replayed, and what signals leave."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

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
    assert (other.returncode, "used" in other.stderr or "differs" in other.stderr) == (2, True)
    large = [run(tmp_path, "large", "seq 1 40000; sleep 60 &") for _ in range(2)]
    assert large[0].stdout.endswith("39999\n40000\n")
    assert large[1].stdout == large[0].stdout[-(64 << 10) :]


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
