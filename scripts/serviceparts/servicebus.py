"""The stand-in for Azure Service Bus: a server of ours on Proton, Apache's library of AMQP 1.0."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from serviceparts.installing import install_wheels, python_of
from serviceparts.places import CHECKOUT, LOOPBACK
from serviceparts.processes import answers_on
from serviceparts.service import Service


class ServiceBus(Service):
    """Queues and topics in a file, which outlive the server. Proton is compiled once, in a directory of its own."""

    name = "servicebus"
    default_port = 18086
    takes_long = True
    PACKAGE = "python-qpid-proton==0.40.0"

    def packages(self) -> list[str]:
        """Return the packages that compile Proton, unless it is compiled."""
        if (self.home / "server").is_dir():
            return []
        compiler = [] if shutil.which("cc") else ["gcc", "libc6-dev"]
        headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
        return compiler if headers else [*compiler, "python3-dev"]

    def install(self) -> None:
        self.install_packages()
        install_wheels(self.PACKAGE, self.home / "server")

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        server = [python_of(self.home / "server"), str(CHECKOUT / "scripts" / "servicebus")]
        data = self.home / "messages.db"
        return ["env", f"PYTHONPATH={self.home / 'server'}", *server, "--port", str(self.port), "--data", str(data)]

    def ready(self) -> bool:
        return answers_on(self.port)

    def url(self, port: int) -> str:
        return f"servicebus://RootManageSharedAccessKey:tests@{LOOPBACK}:{port}?emulator=true"
