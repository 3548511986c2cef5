"""Starting and stopping."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from serviceparts.errors import CannotInstall, ServiceError
from serviceparts.installing import apt_install
from serviceparts.places import START_DEADLINE, STOP_DEADLINE
from serviceparts.processes import Process, answers_on, birth, identity, kill_tree, send, wait_for
from serviceparts.service import Programs, Service

LOG_TAIL_LINES = 20


def process_file(service: Service) -> Path:
    return service.home / "process.json"


def running(service: Service) -> Process | None:
    """The process that an earlier `start` left running."""
    try:
        process = Process(**json.loads(process_file(service).read_text()))
    except FileNotFoundError:
        return None
    return process if process.alive() else None


def address(service: Service) -> str | None:
    """Return the address for the tests: a running server's URL, or the directory of programs."""
    if isinstance(service, Programs):
        return service.url(0) if service.ready() else None
    process = running(service)
    return service.url(process.port) if process else None


def install(service: Service) -> None:
    service.home.mkdir(parents=True, exist_ok=True)
    service.install()


def install_packages(services: Iterable[Service]) -> None:
    """Install the missing packages of all services by one call of apt; each service says itself what it still lacks."""
    with contextlib.suppress(CannotInstall):
        apt_install(lambda: [package for service in services for package in service.packages()])


def start(service: Service) -> None:
    if running(service):
        return
    install(service)
    if isinstance(service, Programs):
        return
    if answers_on(service.port):
        variable = service.variable(after="_PORT")
        raise ServiceError(f"port {service.port} is taken by another program; set {variable}")
    service.prepare()
    child = launch(service)
    born = birth(child.pid)
    if born is not None:
        record = asdict(Process(child.pid, born, service.port))
        process_file(service).write_text(json.dumps(record) + "\n")
    wait_until_ready(service, child)


def launch(service: Service) -> subprocess.Popen[bytes]:
    """Start the server in a session of its own, so that no Ctrl-C in this terminal reaches it."""
    with service.log.open("wb") as log:
        return subprocess.Popen(
            service.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **identity(service.user()),
        )


def wait_until_ready(service: Service, child: subprocess.Popen[bytes]) -> None:
    answered = wait_for(lambda: child.poll() is not None or service.ready(), START_DEADLINE)
    if answered and child.poll() is None:
        child.returncode = 0  # it outlives this script, which is what we want: no warning about it
        return
    problem = f"exited with code {child.returncode}" if answered else f"no answer in {START_DEADLINE:.0f} s"
    if not answered:
        stop(service)
    tail = service.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    raise ServiceError("\n    ".join([f"{problem}; the end of {service.log}:", *tail]))


def stop(service: Service) -> None:
    process = running(service)
    if process:
        send(process.pid, service.stop_signal)
        send(process.pid, signal.SIGCONT)  # a frozen server could not obey
        if not wait_for(lambda: not process.alive(), STOP_DEADLINE):
            kill_tree(process)
    process_file(service).unlink(missing_ok=True)


def restart(service: Service) -> None:
    stop(service)
    start(service)


def kill(service: Service) -> None:
    process = running(service)
    if process is None:
        raise ServiceError("not running")
    kill_tree(process)
    process_file(service).unlink(missing_ok=True)
