"""A RabbitMQ of a test's own, to be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.helpers import ROOT
from tests.ports import free_port


class RabbitMQServer:
    """One node on free ports, run by scripts/services in a directory of its own."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="retrysafe-rabbitmq-", ignore_cleanup_errors=True)
        self.port = free_port(beside=2)  # Erlang's port mapper and its distribution have the next two
        self._environment = {
            **os.environ,
            "RETRYSAFE_SCRATCH": self._directory.name,
            "RETRYSAFE_RABBITMQ_PORT": str(self.port),
        }
        self.start()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._services("start")

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self._services("kill")

    def stop(self) -> None:
        """Let it end in order: of a killed node, RabbitMQ 3.10 now and then elects no leader for a quorum queue.

        See https://github.com/rabbitmq/rabbitmq-server/issues/10070; nobody is handed anything of such a queue.
        """
        self._services("stop")

    def close(self) -> None:
        """Kill it, and remove its directory."""
        if (Path(self._directory.name) / "rabbitmq" / "process.json").exists():
            self.kill()
        self._directory.cleanup()

    def _services(self, verb: str) -> None:
        command = [sys.executable, str(ROOT / "scripts" / "services"), verb, "rabbitmq"]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
