"""Real engines write each number once, also when they are killed after a commit that they have not noted.

Engines have environments of their own, which `make engines` makes. `make prove` does so, and `make test` leaves these
tests to it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import require, unfetched
from tests.docs.pages import ROOT
from tests.streams.engines import NUMBERS, fill
from tests.streams.targets import KafkaTarget, target

pytestmark = [pytest.mark.slow, pytest.mark.beside]

TARGETS = {"spark": ("postgresql", "kafka"), "quix": ("postgresql", "kafka"), "beam": ("postgresql", "kafka")}


def run(engine: str, folder: Path, **environment: str) -> int:
    """Run a job, and return how it ended."""
    programs = ROOT / ".venv" / "engines" / ("flink" if engine == "flink" else "most") / "bin"
    if not programs.exists():
        unfetched(f"no {engine}: run make engines")
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    paths = os.pathsep.join(str(ROOT / name) for name in ("src", "demo", "."))
    command = [str(programs / "python"), "-m", "tests.streams.engines", engine, str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    (folder / "output").write_text(done.stdout + done.stderr)
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "kind"), [(name, kind) for name, kinds in TARGETS.items() for kind in kinds])
def test_a_killed_job_that_runs_again_writes_each_number_once(engine: str, kind: str, tmp_path: Path) -> None:
    require(kind)
    place = target(kind, tmp_path)
    fill(tmp_path)
    (tmp_path / "place.pickle").write_bytes(pickle.dumps(place))
    feed = KafkaTarget.fed(f"{place.name}-in", NUMBERS) if engine == "quix" else None
    assert run(engine, tmp_path) == -signal.SIGKILL, (tmp_path / "output").read_text()
    written = place.written()
    assert 0 < len(written) < len(NUMBERS)
    assert run(engine, tmp_path) == 0, (tmp_path / "output").read_text()
    assert place.written() == list(NUMBERS)
    assert (tmp_path / "task-failed").exists(), "its first task is tried again"
    for one in (place, feed):
        if one is not None:
            one.close()


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_a_deleted_checkpoint_of_spark_is_refused(tmp_path: Path) -> None:
    require("postgresql")
    place = target("postgresql", tmp_path)
    fill(tmp_path)
    (tmp_path / "killed").touch()
    (tmp_path / "place.pickle").write_bytes(pickle.dumps(place))
    assert run("spark", tmp_path) == 0, (tmp_path / "output").read_text()
    assert run("spark", tmp_path, CHECKPOINT="another") != 0
    assert "OriginChanged" in (tmp_path / "output").read_text()
    assert place.written() == list(NUMBERS)
    place.close()


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_a_frame_of_spark_is_loaded_once_by_a_killed_driver(tmp_path: Path) -> None:
    pa, lake = pytest.importorskip("pyarrow"), pytest.importorskip("deltalake")
    fill(tmp_path)
    table = str(tmp_path / "numbers")
    lake.write_deltalake(table, pa.schema([("number", pa.int32())]).empty_table())
    (tmp_path / "place.pickle").write_bytes(pickle.dumps(None))
    assert run("spark_load", tmp_path) == -signal.SIGKILL, (tmp_path / "output").read_text()
    assert run("spark_load", tmp_path) == 0, (tmp_path / "output").read_text()
    written = pa.table(lake.DeltaTable(table).to_pyarrow_table())["number"].to_pylist()
    assert sorted(written) == list(NUMBERS)


@pytest.mark.slow
@pytest.mark.one_of("jobs of Flink")
def test_a_task_of_flink_that_fails_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    require("postgresql")
    place = target("postgresql", tmp_path)
    (tmp_path / "place.pickle").write_bytes(pickle.dumps(place))
    assert run("flink", tmp_path) == 0, (tmp_path / "output").read_text()
    assert (tmp_path / "killed").exists()
    assert place.written() == list(NUMBERS)
    place.close()


@pytest.mark.slow
@pytest.mark.one_of("jobs of Flink")
def test_flink_that_was_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    require("postgresql")
    place = target("postgresql", tmp_path)
    (tmp_path / "place.pickle").write_bytes(pickle.dumps(place))
    assert run("flink", tmp_path, DRIVER="killed") == -signal.SIGKILL, (tmp_path / "output").read_text()
    assert 0 < len(place.written()) < len(NUMBERS)
    assert run("flink", tmp_path, DRIVER="killed") == 0, (tmp_path / "output").read_text()
    assert place.written() == list(NUMBERS)
    assert len(NUMBERS) < (tmp_path / "seen").stat().st_size < 2 * len(NUMBERS), "some again, not from the beginning"
    place.close()
