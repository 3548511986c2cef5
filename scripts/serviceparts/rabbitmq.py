"""RabbitMQ."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

from serviceparts.errors import CannotInstall
from serviceparts.installing import unpack_debian
from serviceparts.places import LOOPBACK
from serviceparts.service import Service


class RabbitMQ(Service):
    """RabbitMQ, one node, which anybody on this machine may use.

    Erlang's port mapper runs beside it and ends with it. The node keeps its data and its cookie in our directory.
    """

    name = "rabbitmq"
    default_port = 15672
    HOME = Path("/usr/lib/rabbitmq/bin")
    RUN = "trap 'trap - TERM; kill 0' EXIT TERM; epmd -address 127.0.0.1 -port $ERL_EPMD_PORT & {server} & wait $!"

    def packages(self) -> list[str]:
        return [] if (self.HOME / "rabbitmq-server").exists() else ["rabbitmq-server"]

    def prepare(self) -> None:
        (self.home / "data").mkdir(exist_ok=True)
        settings = {
            "listeners.tcp.default": f"{LOOPBACK}:{self.port}",
            "loopback_users": "none",
            "vm_memory_high_watermark.relative": "0.4",
            "disk_free_limit.absolute": "50MB",
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (self.home / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.home / "enabled_plugins").write_text("[].\n")

    def environment(self) -> dict[str, str]:
        """Return the settings of Erlang and RabbitMQ: ports beside the first one, and our directory for everything."""
        return {
            "HOME": str(self.home),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self.port + 1),
            "RABBITMQ_DIST_PORT": str(self.port + 2),
            "RABBITMQ_NODENAME": f"retrysafe{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.home / "data"),
            "RABBITMQ_LOG_BASE": str(self.home / "data"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.home / "rabbitmq.pid"),
        }

    def command(self) -> list[str]:
        variables = [f"{name}={value}" for name, value in self.environment().items()]
        return ["env", *variables, "sh", "-c", self.RUN.format(server=self.HOME / "rabbitmq-server")]

    def ready(self) -> bool:
        """Tell whether it greets: a broker that is still starting hangs up on the protocol's header."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(64).startswith(b"\x01")
        except OSError:
            return False

    def url(self, port: int) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{port}/"


class RabbitMQ4(RabbitMQ):
    """RabbitMQ 4, as Debian's unstable distribution builds it.

    Its programs call each other by absolute paths, so it needs a root directory of its own, which only root can make.
    """

    name = "rabbitmq-4"
    kind = "rabbitmq"
    default_port = 15692
    SHELL = ("dash", "bash", "coreutils", "sed", "grep", "mawk", "hostname", "util-linux", "procps", "base-files")
    ENTER = (
        "mount -t proc proc {root}/proc && mkdir -p {root}/dev && mount --rbind /dev {root}/dev && "
        "mount --bind {home} {root}{home} && exec chroot {root} /usr/bin/env -i {environment} /bin/sh -c {run}"
    )

    @property
    def root(self) -> Path:
        return self.home / "server"

    def packages(self) -> list[str]:
        return []

    def install(self) -> None:
        if os.geteuid() != 0:
            raise CannotInstall("it runs in a root directory of its own, which takes root: run this script as root")
        unpack_debian("sid", ["rabbitmq-server", *self.SHELL], self.root)
        (self.root / self.home.relative_to("/")).mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        super().prepare()
        (self.root / "etc" / "hosts").write_text(f"{LOOPBACK} localhost\n")

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}

    def command(self) -> list[str]:
        environment = shlex.join(f"{name}={value}" for name, value in self.environment().items())
        entering = self.ENTER.format(
            root=shlex.quote(str(self.root)),
            home=shlex.quote(str(self.home)),
            environment=environment,
            run=shlex.quote(self.RUN.format(server=self.HOME / "rabbitmq-server")),
        )
        return ["unshare", "-m", "--propagation", "private", "sh", "-c", entering]
