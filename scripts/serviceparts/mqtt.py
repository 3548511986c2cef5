"""MQTT: mosquitto, as Debian builds it."""

from __future__ import annotations

import os
import pwd
import socket

from serviceparts.installing import of_debian, unpack_debian
from serviceparts.places import LOOPBACK
from serviceparts.service import Service

_CONNECT = bytes.fromhex("10 0d 0004 4d515454 05 02 0005 00 0000".replace(" ", ""))
"""MQTT 5, clean start, keep-alive 5 seconds, no properties, a client id from the broker."""


class Mosquitto(Service):
    """One broker, which anybody on this machine may use; it writes each message down before it acknowledges it."""

    name = "mqtt"
    default_port = 11883
    PLUGIN = "usr/lib/*-linux-gnu/mosquitto/mosquitto_persist_sqlite.so"
    SETTINGS = (
        "allow_anonymous true",
        "max_inflight_messages 0",
        "max_queued_messages 0",
        "max_packet_size 2000000",
        "set_tcp_nodelay true",
    )

    def packages(self) -> list[str]:
        return []

    def install(self) -> None:
        unpack_debian("sid", ["mosquitto"], self.home / "server")

    def prepare(self) -> None:
        (self.home / "data").mkdir(exist_ok=True)
        (plugin,) = (self.home / "server").glob(self.PLUGIN)
        (self.home / "denied.acl").write_text("topic readwrite #\ntopic deny denied/#\n")
        lines = (
            f"listener {self.port} {LOOPBACK}",
            f"acl_file {self.home / 'denied.acl'}",
            f"user {pwd.getpwuid(os.geteuid()).pw_name}",
            f"plugin {plugin}",
            f"plugin_opt_db_file {self.home / 'data' / 'mosquitto.sqlite3'}",
            "plugin_opt_flush_period 0",
            *self.SETTINGS,
        )
        (self.home / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        (self.home / "denied.acl").chmod(0o600)

    def command(self) -> list[str]:
        program = of_debian(self.home / "server", "usr/sbin/mosquitto")
        return [*program, "-c", str(self.home / "mosquitto.conf")]

    def ready(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
                connection.sendall(_CONNECT)
                return connection.recv(1) == b"\x20"
        except OSError:
            return False

    def url(self, port: int) -> str:
        return f"mqtt://{LOOPBACK}:{port}"
