"""MQTT, set up wrongly: what a broker of the test's own does not grant."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from retrysafe.protocol.checks import Severity
from tests.doctor.setups.form import ERROR, Arguments, Ground, Setup
from tests.faults.helpers import ROOT
from tests.faults.servers import OwnServer


class Mosquitto(OwnServer):
    """A mosquitto with settings of its own; it keeps nothing."""

    def __init__(self, *settings: str) -> None:
        super().__init__()
        self._settings = settings
        self.start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        sys.path[:0] = [] if str(ROOT / "scripts") in sys.path else [str(ROOT / "scripts")]
        from serviceparts.installing import of_debian

        config = self.home / "mosquitto.conf"
        lines = (
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            f"user {pwd.getpwuid(os.geteuid()).pw_name}",
        )
        config.write_text("\n".join((*lines, *self._settings)) + "\n", encoding="utf-8")
        programs = Path(os.environ.get("RETRYSAFE_SCRATCH") or ROOT / ".services") / "mqtt" / "server"
        return [*of_debian(programs.resolve(), "usr/sbin/mosquitto"), "-c", str(config)]

    def _answers(self) -> bool:
        import socket

        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
        except OSError:
            return False
        return True


def _started(finds: str, severity: Severity, broken: str, setting: str) -> Setup:
    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        ground.service("mqtt")
        with closing(Mosquitto(setting)) as made:
            yield ["--broker", made.url, "--topic", "orders"]

    return Setup(broken, f"`{setting}`", finds, severity, make)


@contextmanager
def sound(ground: Ground) -> Iterator[Arguments]:
    """A broker that grants what is needed."""
    yield ["--broker", ground.service("mqtt"), "--topic", "orders"]


BROKEN = (
    _started("mqtt-qos", ERROR, "The broker acknowledges nothing.", "max_qos 0"),
    _started("mqtt-retain", ERROR, "Consumers cannot tell each other of their session.", "retain_available false"),
)
UNMADE = {
    "mqtt-session": {"kept": 3600},
    "mqtt-password": {"open": True},
}
