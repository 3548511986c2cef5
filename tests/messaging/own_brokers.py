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
"""Where services have the programs that were downloaded for them."""


class OwnBroker:
    """One node of a service, on free ports, with the programs of the shared one if they are there."""

    service: ClassVar[str]
    beside: ClassVar[int] = 0
    """How many ports it needs beside its first one."""

    def __init__(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix=f"retrysafe-{self.service}-", ignore_cleanup_errors=True)
        self._directory, self.home = directory, Path(directory.name) / self.service
        self.home.mkdir()
        for programs in _UNPACKED:
            if (_SHARED / self.service / programs).is_dir():
                (self.home / programs).symlink_to((_SHARED / self.service / programs).resolve())
        self.port = free_port(self.beside)
        port = {f"RETRYSAFE_{self.service.upper()}_PORT": str(self.port)}
        self._environment = {**os.environ, "RETRYSAFE_SCRATCH": directory.name, **port}
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


class RabbitMQServer(OwnBroker):
    """A RabbitMQ. Of a killed node, 3.10 now and then elects no leader for a quorum queue: `stop` it instead.

    See https://github.com/rabbitmq/rabbitmq-server/issues/10070; nobody is handed anything of such a queue.
    """

    service = "rabbitmq"
    beside = 2  # Erlang's port mapper and its distribution

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def stop(self) -> None:
        """Let it end in order."""
        self._services("stop")


class KafkaServer(OwnBroker):
    """A Kafka."""

    service = "kafka"
    beside = 1  # the controller

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"


class NatsServer(OwnBroker):
    """A NATS."""

    service = "nats"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"
