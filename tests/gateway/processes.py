"""A service in Node.js and gateways in front of it, as processes that can be killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.ports import free_port
from tests.processes import Child

SERVICE = Path(__file__).with_name("service.mjs")


class Running(Child):
    """A process that is told to stop at the end of its block."""

    def __exit__(self, *exception: object) -> None:
        self.stop()


class Service(Running):
    """The service in Node.js, on a port that its next life can have too."""

    def __init__(self, ledger: Path, port: int = 0, *, recognises: bool = False, capabilities: Any = None) -> None:
        env = {"PORT": str(port or free_port()), "CAPABILITIES": json.dumps(capabilities or {})}
        super().__init__("node", str(SERVICE), str(ledger), env={**env, **({"RECOGNISES": "1"} if recognises else {})})
        self.port = int(self.until(""))
        self.url = f"http://127.0.0.1:{self.port}"

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

    @property
    def workers(self) -> list[int]:
        """The process ids of its workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [
            int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # and not multiprocessing's resource tracker
