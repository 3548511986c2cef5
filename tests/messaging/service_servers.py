"""A server of a test's own, to be killed, run by scripts/services in a directory of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.helpers import ROOT
from tests.ports import free_port
from tests.versions import variable_of

_SHARED = Path(os.environ.get("RETRYSAFE_SCRATCH") or ROOT / ".services")
_UNPACKED = ("server", "lib")
"""Where services have the programs that were downloaded for them."""


class ServiceServer:
    """One service on free ports, with the programs of the shared one if they are there."""

    def __init__(self, name: str, beside: int = 0) -> None:
        self._name = name
        self._directory = tempfile.TemporaryDirectory(prefix=f"retrysafe-{name}-", ignore_cleanup_errors=True)
        home = Path(self._directory.name) / name
        home.mkdir()
        for programs in _UNPACKED:
            if (_SHARED / name / programs).is_dir():
                (home / programs).symlink_to((_SHARED / name / programs).resolve())
        self.port = free_port(beside)
        port = f"RETRYSAFE_{name.upper().replace('-', '_')}_PORT"
        self._environment = {**os.environ, "RETRYSAFE_SCRATCH": self._directory.name, port: str(self.port)}
        self.start()
        told = dict(line.removeprefix("export ").split("=", 1) for line in self._services("env").splitlines())
        (self.url,) = shlex.split(told[variable_of(name)])

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._services("start", self._name)

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self._services("kill", self._name)

    def close(self) -> None:
        """Kill it, and remove its directory."""
        if (Path(self._directory.name) / self._name / "process.json").exists():
            self.kill()
        self._directory.cleanup()

    def _services(self, *words: str) -> str:
        command = [sys.executable, str(ROOT / "scripts" / "services"), *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
