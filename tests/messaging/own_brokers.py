"""Brokers of a test's own, to be killed: each is run by scripts/services in a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from tests.faults.helpers import ROOT
from tests.ports import free_port

_SHARED = Path(os.environ.get("RETRYSAFE_SCRATCH") or ROOT / ".services")
_UNPACKED = ("lib", "server")
"""The folders of the programs that were downloaded for services."""


class OwnBroker:
    """One node of a service, on free ports, with the programs of the shared one if they are there."""

    service: ClassVar[str]
    beside: ClassVar[int] = 0
    """The number of ports that it needs beside its first one."""

    def __init__(self, port: int | None = None, **environment: str) -> None:
        directory = tempfile.TemporaryDirectory(prefix=f"retrysafe-{self.service}-", ignore_cleanup_errors=True)
        self._directory, self.home = directory, Path(directory.name) / self.service
        self.home.mkdir()
        for programs in _UNPACKED:
            if (_SHARED / self.service / programs).is_dir():
                (self.home / programs).symlink_to((_SHARED / self.service / programs).resolve())
        self.port = port or free_port(self.beside)
        variable = f"RETRYSAFE_{self.service.upper().replace('-', '_')}_PORT"
        self._environment = {
            **os.environ,
            "RETRYSAFE_SCRATCH": directory.name,
            variable: str(self.port),
            **environment,
        }
        self.start()

    @property
    def url(self) -> str:
        raise NotImplementedError

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._services("start")

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self._services("kill")

    def signal(self, signum: signal.Signals) -> None:
        """Stop it, or let it go on."""
        os.kill(json.loads((self.home / "process.json").read_text())["pid"], signum)

    def close(self) -> None:
        """Kill it, and remove its directory."""
        if (self.home / "process.json").exists():
            self.kill()
        self._directory.cleanup()

    def _services(self, verb: str) -> None:
        command = [sys.executable, str(ROOT / "scripts" / "services"), verb, self.service]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class DebeziumWorker(OwnBroker):
    """A worker of Kafka Connect that has Debezium's connector, beside a Kafka."""

    service = "debezium"

    @classmethod
    def is_installed(cls) -> bool:
        return (_SHARED / cls.service / "lib" / "installed.pom.xml").is_file()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
