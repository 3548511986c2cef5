"""MariaDB and MySQL."""

from __future__ import annotations

import os
import shutil
import socket
import zipfile
from abc import abstractmethod
from pathlib import Path

from serviceparts.installing import completed, copy_maven_artifacts, maven_missing, of_debian, unpack_debian
from serviceparts.places import CHECKOUT, LOOPBACK
from serviceparts.processes import quiet
from serviceparts.service import Service


class MariaDB(Service):
    """MariaDB, for the stores of MySQL and MariaDB, with every commit on disk. Root runs it as the user `mysql`."""

    name = "mysql"
    default_port = 13306
    SETTINGS = (
        f"bind-address={LOOPBACK}",
        "skip-name-resolve",
        "max-connections=400",
        "character-set-server=utf8mb4",
        "log-bin=binlog",
        "sync-binlog=1",
        "innodb-flush-log-at-trx-commit=1",
        "innodb-buffer-pool-size=128M",
        "performance-schema=OFF",
    )

    def user(self) -> str | None:
        return "mysql" if os.geteuid() == 0 else None

    @staticmethod
    def program() -> str | None:
        return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

    def packages(self) -> list[str]:
        return [] if self.program() else ["mariadb-server"]

    def prepare(self) -> None:
        data = self.base() / "data"
        if quiet(["test", "-d", str(data)], self.user()):
            return
        fresh = data.with_name("data.new")  # renamed when complete: a broken installation leaves no data behind
        installer = ["mariadb-install-db", "--no-defaults", f"--datadir={fresh}", "--skip-test-db"]
        bootstrap = [self.program() or "mariadbd", "--no-defaults", f"--datadir={fresh}", "--bootstrap"]
        user = (
            "FLUSH PRIVILEGES;\n"
            "CREATE DATABASE retrysafe;\n"
            "CREATE USER retrysafe@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO retrysafe@'127.0.0.1';\n"
        )
        steps = (
            (["rm", "-rf", str(fresh)], ""),
            ([*installer, "--auth-root-authentication-method=socket"], ""),
            (bootstrap, user),
            (["mv", str(fresh), str(data)], ""),
        )
        for command, text in steps:
            self.run_step(command, text)

    def command(self) -> list[str]:
        base = self.base()
        settings = [f"--{setting}" for setting in self.SETTINGS]
        where = [f"--datadir={base / 'data'}", f"--socket={base / 'server.sock'}", f"--pid-file={base / 'server.pid'}"]
        where.append(f"--tmpdir={base}")  # a server that starts removes the temporary tables of all others in its own
        return [self.program() or "mariadbd", "--no-defaults", *where, f"--port={self.port}", *settings]

    def ready(self) -> bool:
        """Tell whether it greets: a server that is not ready yet does not listen, one that is full sends an error."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
                return connection.recv(5)[4:] == b"\x0a"
        except OSError:
            return False

    def url(self, port: int) -> str:
        return f"mysql://retrysafe@{LOOPBACK}:{port}/retrysafe"


class MySQL(MariaDB):
    """A MySQL server that is not installed, but unpacked below our directory. It runs as whoever runs this script."""

    kind = "mysql"
    SETTINGS = (
        f"bind-address={LOOPBACK}",
        "mysqlx=OFF",
        "skip-name-resolve",
        "max-connections=400",
        "log-bin=binlog",
        "sync-binlog=1",
        "innodb-flush-log-at-trx-commit=1",
        "innodb-buffer-pool-size=128M",
        "performance-schema=OFF",
    )

    @property
    def server(self) -> Path:
        return self.home / "server"

    @abstractmethod
    def mysqld(self) -> list[str]:
        """Return the command that runs the program, with the paths of its files."""

    def user(self) -> str | None:
        return None

    def packages(self) -> list[str]:
        return []

    def prepare(self) -> None:
        data = self.home / "data"
        if data.is_dir():
            return
        fresh = self.home / "data.new"  # renamed when complete: a broken installation leaves no data behind
        shutil.rmtree(fresh, ignore_errors=True)
        first = self.home / "first.sql"
        first.write_text(
            "CREATE DATABASE retrysafe;\nCREATE USER retrysafe@'127.0.0.1' IDENTIFIED BY '';\n"
            "GRANT ALL ON *.* TO retrysafe@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        self.run_step([*self.mysqld(), f"--datadir={fresh}", "--initialize-insecure", f"--init-file={first}"], "")
        fresh.rename(data)

    def command(self) -> list[str]:
        where = [f"--datadir={self.home / 'data'}", f"--socket={self.home / 'server.sock'}", f"--tmpdir={self.home}"]
        settings = [f"--{setting}" for setting in self.SETTINGS]
        return [*self.mysqld(), *where, f"--pid-file={self.home / 'server.pid'}", f"--port={self.port}", *settings]

    def as_whom(self) -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []


class MySQL8(MySQL):
    """MySQL 8.0, from Maven Central."""

    name = "mysql-8"
    default_port = 13308
    takes_long = True
    POM = CHECKOUT / "scripts" / "mysql-8.pom.xml"

    def packages(self) -> list[str]:
        libraries = [] if Path("/usr/lib/x86_64-linux-gnu/libaio.so.1").exists() else ["libaio1", "libnuma1"]
        return libraries if self.server.is_dir() else libraries + maven_missing()

    def install(self) -> None:
        super().install()
        if self.server.is_dir():
            return
        artifacts = self.home / "artifacts"
        copy_maven_artifacts(self.POM, artifacts)
        (archive,) = artifacts.glob("*.zip")
        with completed(self.server) as fresh, zipfile.ZipFile(archive) as packed:
            wanted = [name for name in packed.namelist() if not name.startswith("lib/mecab") and "debug" not in name]
            packed.extractall(fresh, wanted)
            (fresh / "bin" / "mysqld").chmod(0o755)
        shutil.rmtree(artifacts)

    def mysqld(self) -> list[str]:
        base = [f"--basedir={self.server}", f"--lc-messages-dir={self.server / 'share'}", "--secure-file-priv=NULL"]
        return [str(self.server / "bin" / "mysqld"), "--no-defaults", *self.as_whom(), *base]


class MySQL9(MySQL):
    """MySQL 9, as Debian's unstable distribution builds it."""

    name = "mysql-9"
    default_port = 13309

    def install(self) -> None:
        super().install()
        unpack_debian("sid", ["mysql-server-core"], self.server)

    def mysqld(self) -> list[str]:
        messages = f"--lc-messages-dir={self.server / 'usr/share/mysql'}"
        base = [f"--basedir={self.server / 'usr'}", messages, "--secure-file-priv=NULL"]
        return [*of_debian(self.server, "usr/sbin/mysqld"), "--no-defaults", *self.as_whom(), *base]
