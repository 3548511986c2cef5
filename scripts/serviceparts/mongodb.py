"""The stand-in for MongoDB: SecantusDB, a server in Python over WiredTiger."""

from __future__ import annotations

from serviceparts.installing import install_wheels, python_of
from serviceparts.places import LOOPBACK
from serviceparts.processes import answers_on
from serviceparts.service import Service


class SecantusDB(Service):
    """A replica set of one server, with its data on disk, in a virtual environment of its own."""

    name = "mongodb"
    default_port = 17017
    PACKAGE = "secantusdb==0.7.0b3"

    def packages(self) -> list[str]:
        return []

    def install(self) -> None:
        install_wheels(self.PACKAGE, self.home / "server")

    def prepare(self) -> None:
        (self.home / "data").mkdir(exist_ok=True)

    def command(self) -> list[str]:
        server = self.home / "server"
        where = ["--host", LOOPBACK, "--port", str(self.port), "--storage-path", str(self.home / "data")]
        program = [python_of(server), str(server / "bin" / "secantusd-py"), *where, "--sync-on-commit"]
        return ["env", f"PYTHONPATH={server}", *program]

    def ready(self) -> bool:
        return answers_on(self.port)

    def url(self, port: int) -> str:
        return f"mongodb://{LOOPBACK}:{port}"
