"""A service in Node.js and gateways in front of it, as processes that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any
from urllib.request import urlopen

SERVICE = Path(__file__).with_name("service.mjs")


class Running:
    """A process whose lines on standard output tell what it does."""

    def __init__(self, *command: str, env: Mapping[str, str] = {}) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        self._lines: Queue[str | None] = Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._hear, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _hear(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def until(self, beginning: str) -> str:
        """Wait for a line that begins so; return its rest."""
        while (line := self._lines.get(timeout=60)) is not None:
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        raise AssertionError(f"it ended: {self.errors}")

    @property
    def errors(self) -> str:
        """What it has said on standard error."""
        return "".join(self._errors)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Service(Running):
    """The service in Node.js, on a port that its next life can have too."""

    def __init__(self, ledger: Path, port: int = 0, *, recognises: bool = False, capabilities: Any = None) -> None:
        env = {"PORT": str(port), "CAPABILITIES": json.dumps(capabilities or {})}
        super().__init__("node", str(SERVICE), str(ledger), env={**env, **({"RECOGNISES": "1"} if recognises else {})})
        self.port = int(self.until(""))
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Service:
        return self

    def control(self, path: str) -> Any:
        """Ask the service itself, past the gateway."""
        with urlopen(f"{self.url}/fixture{path}", timeout=60) as response:
            return json.load(response)


class GatewayProcess(Running):
    """``retrysafe gateway``."""

    def __init__(self, *options: str, env: Mapping[str, str] = {}) -> None:
        super().__init__(sys.executable, "-m", "retrysafe", "gateway", "--listen", "127.0.0.1:0", *options, env=env)
        self.url = self.until("serving")
        self.port = int(self.url.rpartition(":")[2])

    def __enter__(self) -> GatewayProcess:
        return self

    @property
    def workers(self) -> list[int]:
        """The process ids of its workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [
            int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # and not multiprocessing's resource tracker
