"""`retrysafe demo` as a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import dynamodb, migrated, mysql_migrated, server_of  # noqa: F401 - fixtures
from tests.faults.helpers import until

pytestmark = pytest.mark.slow

FORMS = [pytest.param([], id="http"), pytest.param(["--functions"], id="functions")]
COMMAND = [sys.executable, "-m", "retrysafe", "demo"]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=240, check=False)


def audited(folder: Path, seed: int, *arguments: str, payments: int = 5) -> dict[str, dict[str, int]]:
    """Run the demo, check what holds in every run, and return the counts of each lane."""
    file = folder / "audit.json"
    done = demo("--seed", str(seed), "--payments", str(payments), "--json", str(file), *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    written: dict[str, Any] = json.loads(file.read_text())
    lanes: dict[str, dict[str, int]] = written["lanes"]
    assert (written["seed"], written["form"]) == (seed, "functions" if "--functions" in arguments else "http")
    assert list(lanes) == ["unsafe", "naive", "retrysafe"]
    for count in lanes.values():
        assert count["intents"] == payments
        columns = ("charged_once", "charged_twice", "lost", "uncertain")
        assert sum(count[column] for column in columns) == payments
    for lane in ("unsafe", "naive"):
        assert lanes[lane]["charged_twice"] > 0
    guarded = lanes["retrysafe"]
    assert (guarded["charged_twice"], guarded["lost"], guarded["wrong_amount"]) == (0, 0, 0)
    return lanes


@pytest.mark.parametrize("form", FORMS)
def test_retrysafe_charges_once_where_the_others_charge_twice(tmp_path: Path, form: list[str]) -> None:
    lanes = audited(tmp_path, 11, *form)
    assert lanes["retrysafe"]["charged_once"] == 5
    assert lanes["retrysafe"]["uncertain"] == 0
    assert lanes["retrysafe"]["replayed"] > 0


@pytest.mark.one_of("runs of the demo", of=3)
@pytest.mark.parametrize("form", FORMS)
def test_a_bank_without_keys_ends_in_doubt_never_in_a_second_charge(tmp_path: Path, form: list[str]) -> None:
    assert audited(tmp_path, 13, "--bank-without-keys", *form)["retrysafe"]["uncertain"] > 0


@pytest.mark.one_of("runs of the demo", of=3)
@pytest.mark.parametrize("form", FORMS)
def test_one_payment_with_every_fault_that_fits(tmp_path: Path, form: list[str]) -> None:
    assert audited(tmp_path, 14, *form, payments=1)["retrysafe"]["charged_once"] == 1


@pytest.mark.one_of("runs of the demo", of=3)
@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
def test_without_a_server_the_demo_says_so_and_calls_functions(tmp_path: Path, package: str) -> None:
    file = tmp_path / "audit.json"
    without = f"import sys; sys.modules[{package!r}] = None; from retrysafe.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", without, "demo", "--payments", "1", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == (
        f"Without {package} (pip install 'retrysafe[demo]') there is no API: the demo calls functions, as with "
        "--functions."
    )
    assert json.loads(file.read_text())["form"] == "functions"


@pytest.mark.one_of("runs of the demo", of=3)
@pytest.mark.parametrize("options", [[], ["--bank-without-keys", "--functions"]], ids=["keyed", "external"])
@pytest.mark.parametrize("kind", ["psycopg", "pymysql", "redis", "redis-cluster", "redis-sentinel", "dynamodb"])
def test_on_every_store(tmp_path: Path, kind: str, options: list[str], request: pytest.FixtureRequest) -> None:
    lanes = audited(tmp_path, 15, "--store", server_of(kind, request), *options)
    assert (lanes["retrysafe"]["uncertain"] > 0) == bool(options)


def test_without_the_demos_package_the_command_says_how_to_install_it() -> None:
    without = "import sys; sys.modules['retrysafe_demo'] = None; from retrysafe.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", without, "demo", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "retrysafe: The demo is a separate package: pip install 'retrysafe[demo]'.\n"


@pytest.mark.one_of("runs of the demo", of=3)
def test_your_own_payments(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("id,account,amount,currency\n" + "".join(f"P{n},acct,{n}.50,EUR\n" for n in range(1, 7)))
    done = demo("--seed", "16", "--input", str(file), "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done
    ledger = (tmp_path / "kept" / "retrysafe" / "bank-ledger.jsonl").read_text().splitlines()
    charged = {entry["payment"]: entry["amount"] for entry in map(json.loads, ledger)}
    assert charged == {f"P{n}": f"{n}.50" for n in range(1, 7)}
    assert "6 payments" in done.stdout
    assert "charged every one of 6 exactly once" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--payments", "0"], "--payments 0: at least one payment is needed"),
        (["--input", "/nowhere/at/all.csv"], "/nowhere/at/all.csv: No such file"),
        (["--json", "/nowhere/at/all.json"], "--json /nowhere/at/all.json: there is no such folder"),
        (["--store", "memory://"], "memory:// is private to each process"),
        (["--store", "nonsense://"], "unknown kind of URL"),
        (["--keep", "/"], "give a folder that is not there yet"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(arguments: list[str], complaint: str) -> None:
    done = demo(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.one_of("runs of the demo", of=3)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ending_the_demo_ends_all_of_it(end: signal.Signals, tmp_path: Path) -> None:
    long_enough = [*COMMAND, "--payments", "3000"]  # it must still be at work when the signal comes
    said = tmp_path / "stderr"
    with (
        said.open("wb") as errors,
        subprocess.Popen(long_enough, preexec_fn=_hear_interrupts, stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        try:
            # three banks, three supervisors, and most of their twelve workers
            until(lambda: len(descendants_of(process.pid)) >= 15)
            watched = [watch for pid in descendants_of(process.pid) for watch in watching(pid)]
            process.send_signal(end)
            process.wait(60)
        finally:
            process.kill()
    for child in watched:
        assert ended(child)
        os.close(child)
    assert process.returncode == (-signal.SIGKILL if end is signal.SIGKILL else 130), said.read_text()
    assert said.read_text() == ""


def _hear_interrupts() -> None:
    """A run in the background ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def descendants_of(pid: int) -> list[int]:
    """Its children and theirs."""
    return [found for child in children(pid) for found in (child, *children(child))]


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    try:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for thread in threads for child in thread.joinpath("children").read_text().split()]
    except OSError:  # it has just ended
        return []


def watching(pid: int) -> Iterator[int]:
    """A descriptor of the process, unless it has just been killed by the demo and waited for."""
    with suppress(ProcessLookupError):
        yield os.pidfd_open(pid)


def ended(child: int) -> bool:
    """Tell whether the process behind a descriptor has ended, or does so soon."""
    return bool(wait([child], 30))
