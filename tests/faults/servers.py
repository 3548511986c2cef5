"""Database servers of a test's own, in directories of their own, to be killed and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.faults.helpers import DEADLINE, ROOT, until
from tests.ports import free_port
from tests.stores.ageing import dynamodb_client, mysql_connection


class OwnServer:
    """A server process on a free port of the loopback. It runs as ``user`` where we are root, whom it would refuse."""

    _patience = DEADLINE

    def __init__(self, user: str | None = None) -> None:
        owner = pwd.getpwnam(user) if user is not None and os.geteuid() == 0 else None
        self.home = Path(tempfile.mkdtemp(prefix="retrysafe-faults-"))
        self._identity: dict[str, Any] = {}
        if owner is not None:
            os.chown(self.home, owner.pw_uid, owner.pw_gid)
            self._identity = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": [], "cwd": "/"}
        self.port = free_port()
        self._log = (self.home.parent / f"{self.home.name}.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        """Its environment, beside that of this process."""

    @property
    def url(self) -> str:
        raise NotImplementedError

    def _command(self) -> list[str]:
        """Return the command that starts it, on the data that is there."""
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _run(self, command: list[str], text: str = "") -> None:
        """Run a program that prepares the server, to its end."""
        subprocess.run(command, check=True, input=text.encode(), stdout=self._log, stderr=self._log, **self._identity)

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = subprocess.Popen(
            self._command(),
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **self._environment},
            **self._identity,
        )
        until(self._answers, self._patience)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """SIGKILL the server, as a power cut would."""
        self.process.kill()
        self.process.wait(DEADLINE)

    def signal(self, signum: signal.Signals) -> None:
        """Stop it, or let it go on; one that is stopped has stopped when this returns."""
        self.process.send_signal(signum)
        if signum is signal.SIGSTOP:
            until(self._is_stopped)

    def _is_stopped(self) -> bool:
        return all(_state(thread) in "TZX" for thread in Path(f"/proc/{self.process.pid}/task").iterdir())

    def close(self) -> None:
        """Kill the server and remove its directory."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._log.close()
        Path(self._log.name).unlink()
        shutil.rmtree(self.home, ignore_errors=True)


def _state(thread: Path) -> str:
    """The letter of a thread's state; X for one that is gone."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


class Cluster(OwnServer):
    """A PostgreSQL cluster."""

    settings: tuple[str, ...] = ()
    """Its settings, beside those that all have."""

    def __init__(self, programs: Path) -> None:
        super().__init__("postgres")
        self._programs = programs
        self._data = str(self.home / "data")
        self._make()
        self.start()

    def _make(self) -> None:
        initdb = str(self._programs / "initdb")
        self._run([initdb, "-D", self._data, "-U", "retrysafe", "-A", "trust", "-E", "UTF8", "--no-sync"])

    def replica(self, name: str) -> Replica:
        """A server that follows this one, and calls itself ``name`` there."""
        return Replica(self._programs, self, name)

    def set(self, **settings: str) -> None:
        """Change settings of the running server."""
        with self.admin() as admin:
            for name, value in settings.items():
                admin.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
            admin.execute("SELECT pg_reload_conf()")
        for name, value in settings.items():
            until(partial(self._has, name, value))

    def _has(self, name: str, value: str) -> bool:
        with self.admin() as admin:
            return bool(admin.execute(f"SHOW {name}".encode()).fetchone() == (value,))

    def admin(self) -> Any:
        """A connection of a person's."""
        import psycopg

        return psycopg.connect(self.url, autocommit=True)

    @property
    def url(self) -> str:
        return f"postgresql://retrysafe@127.0.0.1:{self.port}/postgres"

    def _command(self) -> list[str]:
        settings = ["fsync=on", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=60"]
        settings += self.settings
        flags = [word for setting in settings for word in ("-c", setting)]
        return [str(self._programs / "postgres"), "-D", self._data, "-p", str(self.port), *flags]

    def _answers(self) -> bool:
        ready = [str(self._programs / "pg_isready"), "-q", "-d", self.url]
        return subprocess.run(ready, check=False).returncode == 0

    def kill(self) -> None:
        """SIGKILL the server and every one of its processes at once, as a power cut would."""
        os.kill(self.process.pid, signal.SIGSTOP)
        children = _children(self.process.pid)
        for pid in (self.process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(DEADLINE)
        until(lambda: not any(_alive(pid) for pid in children))
        Path(self._data, "postmaster.pid").unlink(missing_ok=True)


class LogicalCluster(Cluster):
    """A PostgreSQL whose log tells of rows."""

    settings = ("wal_level=logical", "max_replication_slots=20")


class Replica(Cluster):
    """A streaming replica of a cluster; promoted, it is a primary."""

    def __init__(self, programs: Path, primary: Cluster, name: str) -> None:
        self._primary, self._name, self.settings = primary, name, primary.settings
        super().__init__(programs)

    def _make(self) -> None:
        """Copy the primary, and follow it from there."""
        source = f"host=127.0.0.1 port={self._primary.port} user=retrysafe application_name={self._name}"
        command = [
            str(self._programs / "pg_basebackup"),
            "-D",
            self._data,
            "-d",
            source,
            "-R",
            "-c",
            "fast",
            "--no-sync",
        ]
        self._run(command)

    def has_all(self) -> bool:
        """Tell whether it has applied all that its primary has written."""
        with self._primary.admin() as primary, self.admin() as replica:
            written = primary.execute("SELECT pg_current_wal_lsn()").fetchone()
            return bool(replica.execute("SELECT pg_last_wal_replay_lsn() >= %s", written).fetchone()[0])

    def hear_no_more(self) -> None:
        """Cut the replica off from its primary: what is committed from now on it will never have."""
        until(self.has_all)
        self.set(primary_conninfo="")
        receivers = "SELECT 1 FROM pg_stat_replication WHERE application_name = %s"
        with self._primary.admin() as primary:
            until(lambda: not primary.execute(receivers, (self._name,)).fetchall())

    def promote(self) -> None:
        """Make it a primary."""
        with self.admin() as admin:
            admin.execute("SELECT pg_promote()")


class PgBouncer(OwnServer):
    """A PgBouncer in transaction mode, with two server connections for whoever comes, in turn.

    It does not follow prepared statements, whatever its version.
    """

    def __init__(self, program: str, behind: str) -> None:
        super().__init__("postgres")
        self._program = program
        self._behind = urlsplit(behind)
        self._config = self.home / "pgbouncer.ini"
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": 2,
            "max_client_conn": 200,
            "server_round_robin": 1,
            "ignore_startup_parameters": "extra_float_digits",
        }
        if self._could_follow():
            settings["max_prepared_statements"] = 0
        server = f"host=127.0.0.1 port={self._behind.port} user={self._behind.username}"
        lines = [f"[databases]\n* = {server}\n[pgbouncer]", *(f"{k} = {v}" for k, v in settings.items())]
        self._config.write_text("\n".join(lines) + "\n")
        self.start()

    @property
    def url(self) -> str:
        return self.before(self._behind.geturl())

    def before(self, url: str) -> str:
        """The URL of another database of the same server, through it."""
        return urlsplit(url)._replace(netloc=f"{self._behind.username}@127.0.0.1:{self.port}").geturl()

    def _could_follow(self) -> bool:
        said = subprocess.run([self._program, "--version"], check=True, capture_output=True, text=True).stdout
        return [int(number) for number in said.split()[1].split(".")[:2]] >= [1, 21]

    def _command(self) -> list[str]:
        return [self._program, str(self._config)]

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


def pgbouncer_program() -> str | None:
    """The PgBouncer that is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def programs_of(url: str) -> Path:
    """The directory of the programs that a PostgreSQL server runs from."""
    import psycopg

    with psycopg.connect(url) as connection:
        ((found,),) = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchall()
    return Path(found)


def postgresql_programs() -> Path | None:
    """The directory of the newest PostgreSQL server that is installed."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: float(path.parent.name), default=None)


_USERS = (("retrysafe", "*.*"), ("app", "shop.*"))


class MariaDB(OwnServer):
    """A MariaDB server; at its start it removes the temporary tables of others in the folder that it has for them."""

    def __init__(self, program: str, *settings: str) -> None:
        super().__init__("mysql")
        self._program, self._settings = program, settings
        data = [f"--datadir={self.home}/data", f"--tmpdir={self.home}", "--innodb-log-file-size=16M"]
        command = ["mariadb-install-db", "--no-defaults", *data, "--skip-test-db"]
        self._run([*command, "--auth-root-authentication-method=socket"])
        users = "".join(f"GRANT ALL ON {what} TO {user}@'127.0.0.1' IDENTIFIED BY '';\n" for user, what in _USERS)
        self._run(
            [program, "--no-defaults", *data, "--bootstrap"], f"FLUSH PRIVILEGES;\nCREATE DATABASE shop;\n{users}"
        )
        self.start()

    @property
    def url(self) -> str:
        return f"mysql://retrysafe@127.0.0.1:{self.port}/shop"

    def _command(self) -> list[str]:
        where = [f"--datadir={self.home}/data", f"--socket={self.home}/sock", f"--pid-file={self.home}/pid"]
        where += [f"--tmpdir={self.home}", f"--port={self.port}"]
        flags = ["--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-buffer-pool-size=32M"]
        return [self._program, "--no-defaults", *where, *flags, *self._settings]

    def _answers(self) -> bool:
        import pymysql

        try:
            mysql_connection(self.url).close()
        except pymysql.MySQLError:
            return False
        return True


def mariadb_program() -> str | None:
    """The MariaDB server that is installed."""
    return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class DynamoDBLocal(OwnServer):
    """DynamoDB Local with its tables in a file, which outlives it. Its credentials are any."""

    _patience = 4 * DEADLINE

    def __init__(self, jars: Path) -> None:
        super().__init__()
        self._jars = jars
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"dynamodb://retrysafe_records?region=us-east-1&timeout=10s&endpoint={self.endpoint}"

    def _command(self) -> list[str]:
        main = str(ROOT / "scripts" / "DynamoDBOnLoopback.java")
        java = ["java", f"-Djava.library.path={self._jars}", "-cp", f"{self._jars}/*", main]
        return [*java, "-dbPath", str(self.home), "-sharedDb", "-disableTelemetry", "-port", str(self.port)]

    def _answers(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            dynamodb_client(self.endpoint).list_tables()
        except (BotoCoreError, ClientError):
            return False
        return True


def dynamodb_jars() -> Path | None:
    """Return the place of DynamoDB Local, if Java can compile the few lines that keep it to loopback."""
    home = Path(os.environ.get("RETRYSAFE_SCRATCH") or ROOT / ".services").resolve()
    jars = home / "dynamodb" / "lib"
    return jars if (jars / "installed.pom.xml").is_file() and shutil.which("javac") else None


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
