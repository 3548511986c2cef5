"""The steps of a first user: the wheels into an empty environment, and the demo on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import absent

ROOT = Path(__file__).parents[2]
PIP = ("--no-index", "--no-deps", "--quiet", "--disable-pip-version-check")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels of both distributions, built with what is installed."""
    if find_spec("hatchling") is None:
        absent("no hatchling: run make venv")
    folder = tmp_path_factory.mktemp("wheels")
    building = [sys.executable, "-m", "pip", "wheel", *PIP, "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*building, str(ROOT), str(ROOT / "demo")], check=True, timeout=120)
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def programs(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheels and nothing else."""
    home = tmp_path_factory.mktemp("empty")
    venv.create(home, with_pip=True)
    subprocess.run([home / "bin" / "pip", "install", *PIP, *wheels], check=True, timeout=120)
    return home / "bin"


def environment() -> dict[str, str]:
    """Without what leads to this checkout."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RETRYSAFE", "VIRTUAL"))
    }
    return kept | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}


@pytest.mark.slow
def test_the_wheels_hold_the_migrations_the_types_and_no_tests(wheels: list[Path]) -> None:
    names = [name for wheel in wheels for name in zipfile.ZipFile(wheel).namelist()]
    assert "retrysafe/django/migrations/0001_records.py" in names
    assert "retrysafe/py.typed" in names
    assert "retrysafe_demo/payments.csv" in names
    assert not [name for name in names if name.startswith(("tests", "examples", "benchmarks"))]


@pytest.mark.slow
def test_links_of_the_readme_work_on_an_index(wheels: list[Path]) -> None:
    (wheel,) = (wheel for wheel in wheels if wheel.name.startswith("retrysafe-"))
    shown = zipfile.ZipFile(wheel).read(f"retrysafe-{version('retrysafe')}.dist-info/METADATA").decode("utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert len(links) > 50
    for link in links:
        place = re.fullmatch(
            r"https://(?:github|raw\.githubusercontent)\.com/retrysafe/retrysafe/(?:blob/)?main/([^#]+).*", link
        )
        assert place is not None, link
        assert (ROOT / place[1]).exists(), link


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_the_demo_runs_where_nothing_else_is_installed(programs: Path, tmp_path: Path) -> None:
    command = [programs / "retrysafe", "demo", "--payments", "6", "--seed", "3"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pip install 'retrysafe[demo]'" in done.stdout + done.stderr
    assert re.search(r"unsafe +6/6 settled, [1-9]\d* charged twice", done.stdout)
    assert re.search(r"retrysafe +6/6 settled, 0 charged twice", done.stdout)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_on_a_terminal_its_panels_count_what_is_charged_twice(programs: Path, tmp_path: Path) -> None:
    """The extra's packages stand beside the wheels, as pip would put them there."""
    packages = programs.parent / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "extra.pth").write_text(sysconfig.get_path("purelib") + "\n")
    try:
        shown = on_a_terminal([str(programs / "retrysafe"), "demo", "--payments", "6", "--seed", "3"], tmp_path)
    finally:
        (packages / "extra.pth").unlink()
    live, _, audit = shown.partition("Audit of the bank's ledger")
    assert "unsafe" in live
    counted = [line for line in live.splitlines() if "charged twice" in line]
    assert len(counted) > 3, "drawn again while the lanes run"
    first, last = counted[0], counted[-1]
    assert re.findall(r"charged twice +(\d+)", first)[:1] == ["0"]
    assert [int(number) > 0 for number in re.findall(r"charged twice +(\d+)", last)] == [True, True, False]
    assert "CHARGED AGAIN" in live
    assert "retrysafe charged every one of 6 exactly once" in " ".join(audit.split())


def on_a_terminal(command: list[str], folder: Path) -> str:
    """Return a program's output on a terminal, without its colours and movements."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment()
    ) as process:
        os.close(theirs)
        shown = bytearray()
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # Linux says so at the end
                break
            if not part:
                break
            shown += part
        os.close(ours)
        assert process.wait(60) == 0
    return ESCAPES.sub("", shown.decode(errors="replace"))
