"""Database servers of a test's own, in directories of their own, to be killed and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.faults.helpers import DEADLINE, ROOT, until
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
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port: int = free.getsockname()[1]
        self._log = (self.home.parent / f"{self.home.name}.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        raise NotImplementedError

    def _command(self) -> list[str]:
        """What starts it, on the data that is there."""
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _run(self, command: list[str], text: str = "") -> None:
        """Run a program that prepares the server, to its end."""
        subprocess.run(command, check=True, input=text.encode(), stdout=self._log, stderr=self._log, **self._identity)

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = subprocess.Popen(self._command(), stdout=self._log, stderr=self._log, **self._identity)
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
        """Stop it, or let it go on."""
        self.process.send_signal(signum)

    def close(self) -> None:
        """Kill the server and remove its directory."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._log.close()
        Path(self._log.name).unlink()
        shutil.rmtree(self.home, ignore_errors=True)


class Cluster(OwnServer):
    """A PostgreSQL cluster."""

    def __init__(self, programs: Path) -> None:
        super().__init__("postgres")
        self._programs = programs
        self._data = str(self.home / "data")
        initdb = str(programs / "initdb")
        self._run([initdb, "-D", self._data, "-U", "retrysafe", "-A", "trust", "-E", "UTF8", "--no-sync"])
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://retrysafe@127.0.0.1:{self.port}/postgres"

    def _command(self) -> list[str]:
        settings = ["fsync=on", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=60"]
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


def postgresql_programs() -> Path | None:
    """The directory of the newest PostgreSQL server that is installed."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: float(path.parent.name), default=None)


class MariaDB(OwnServer):
    """A MariaDB server."""

    def __init__(self, program: str, *settings: str) -> None:
        super().__init__("mysql")
        self._program, self._settings = program, settings
        data = [f"--datadir={self.home}/data", "--innodb-log-file-size=16M"]
        command = ["mariadb-install-db", "--no-defaults", *data, "--skip-test-db"]
        self._run([*command, "--auth-root-authentication-method=socket"])
        user = "FLUSH PRIVILEGES;\nCREATE DATABASE shop;\nGRANT ALL ON *.* TO retrysafe@'127.0.0.1' IDENTIFIED BY '';\n"
        self._run([program, "--no-defaults", *data, "--bootstrap"], user)
        self.start()

    @property
    def url(self) -> str:
        return f"mysql://retrysafe@127.0.0.1:{self.port}/shop"

    def _command(self) -> list[str]:
        where = [f"--datadir={self.home}/data", f"--socket={self.home}/sock", f"--pid-file={self.home}/pid"]
        flags = ["--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-buffer-pool-size=32M"]
        return [self._program, "--no-defaults", *where, f"--port={self.port}", *flags, *self._settings]

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
        return f"dynamodb://retrysafe_records?region=us-east-1&endpoint={self.endpoint}"

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
    """Where `scripts/services` has put DynamoDB Local, if Java can compile the few lines that keep it to loopback."""
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
