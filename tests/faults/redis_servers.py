"""Redis servers of a test's own, to be killed, frozen and set up wrongly."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import redis

from tests.faults.helpers import DEADLINE, until
from tests.faults.servers import OwnServer

COMPILER = "cc"
QUIET = ("--save", "", "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")


class Server(OwnServer):
    """One redis-server."""

    def __init__(self, *settings: str) -> None:
        super().__init__()
        self._settings = settings
        self.client = redis.Redis(port=self.port, socket_timeout=DEADLINE)
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _command(self) -> list[str]:
        return ["redis-server", "--port", str(self.port), "--dir", str(self.home), *QUIET, *self._settings]

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def hand_over_its_log(self) -> None:
        """Wait until its log is in the system's hands: with everysec that waits for a synchronisation under way."""
        until(lambda: self.info("persistence")["aof_buffer_length"] == 0)

    def info(self, section: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.info(section)
        return found

    def close(self) -> None:
        """Kill it, and remove its directory."""
        self.client.close()
        super().close()


class WithItsClock(Server):
    """A server whose wall clock can be set."""

    def __init__(self) -> None:
        super().__init__("--appendonly", "yes")

    def start(self) -> None:
        library = self.home / "clock.so"
        self._run([COMPILER, "-shared", "-fPIC", "-O1", "-o", str(library), str(Path(__file__).with_name("clock.c"))])
        self.set_clock(0)
        self._environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self.home / "offset")}
        super().start()

    def set_clock(self, seconds: int) -> None:
        """Let it be so many seconds ahead of the time, from now on."""
        written = self.home / "offset.new"
        written.write_text(str(seconds))
        written.replace(self.home / "offset")

    def time(self) -> float:
        """Return its time."""
        seconds, micros = self.client.time()
        return float(seconds + micros / 1e6)


class Sentinel(Server):
    """A Sentinel that is alone in judging its master."""

    SERVICE = "shop"

    def __init__(self, master: Server) -> None:
        self._master = master
        super().__init__()

    def _command(self) -> list[str]:
        config = self.home / "sentinel.conf"
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.home}",
            f"sentinel monitor {self.SERVICE} 127.0.0.1 {self._master.port} 1",
            f"sentinel down-after-milliseconds {self.SERVICE} 60000",
            f"sentinel failover-timeout {self.SERVICE} 2000",
        )
        config.write_text("".join(f"{line}\n" for line in lines))
        return ["redis-server", str(config), "--sentinel"]

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{self.SERVICE}/0"

    def master_port(self) -> int:
        """The port of whom it takes for the master."""
        found: Any = self.client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)
        return int(found[1])


class FailoverSet:
    """A master, its replica, and a Sentinel."""

    def __init__(self) -> None:
        self.master = Server("--appendonly", "yes", "--appendfsync", "always")
        self.replica = Server("--replicaof", "127.0.0.1", str(self.master.port))
        until(lambda: self.replica.info("replication")["master_link_status"] == "up")
        self.sentinel = Sentinel(self.master)
        until(lambda: self.sentinel.info("sentinel")["master0"]["slaves"] == 1)

    @property
    def url(self) -> str:
        return self.sentinel.url

    def let_the_replica_catch_up(self) -> None:
        """Wait until it has a write that came after all others: WAIT looks at its own connection's writes only."""
        with self.master.client.client() as connection:
            connection.set("caught up", 1)
            assert connection.wait(1, 30_000) == 1

    def cut_off_the_replica(self) -> None:
        """From now on nothing reaches the replica, though both servers run."""
        client = self.master.client
        client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: self.master.info("replication")["connected_slaves"] == 0)

    def fail_over(self) -> None:
        """Kill the master, and wait until the replica is in its place; until then a slow disk is no failover."""
        self.master.kill()
        self.sentinel.client.execute_command("SENTINEL", "SET", Sentinel.SERVICE, "down-after-milliseconds", "300")
        until(lambda: self.sentinel.master_port() == self.replica.port)
        until(lambda: self.replica.info("replication")["role"] == "master")

    def close(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.close()


def installed() -> bool:
    """Tell whether there is a redis-server to start."""
    return shutil.which("redis-server") is not None and os.name == "posix"
