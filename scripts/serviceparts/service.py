"""The interface of every service."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shlex
import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from serviceparts.errors import ServiceError
from serviceparts.installing import apt_install
from serviceparts.places import SCRATCH
from serviceparts.processes import identity, quiet


class Service(ABC):
    """One server: how to install it, run it, and tell that it answers."""

    name: str
    default_port: int
    kind: str | None = None
    """The service whose place it can take: the name of the same server in another version."""
    of_tests = False
    """True if tests start one each of their own: `start` without its name only installs it."""
    of_proving = False
    """True if only `make prove` needs it: it is left alone where it is not named."""
    takes_long = False
    """True if it is compiled, or much is downloaded for it: it is begun with."""
    stop_signal = signal.SIGTERM

    @property
    def home(self) -> Path:
        return SCRATCH / self.name

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    @property
    def port(self) -> int:
        return int(os.environ.get(self.variable(after="_PORT")) or self.default_port)

    def variable(self, before: str = "", after: str = "") -> str:
        """An environment variable about the service."""
        return f"RETRYSAFE_{before}{self.name.upper().replace('-', '_')}{after}"

    def user(self) -> str | None:
        """The system user that must run the server, when it cannot be the one who runs this script."""
        return None

    def base(self) -> Path:
        """Return the data directory of a server with a user of its own: under /tmp if that user cannot enter ours."""
        user = self.user()
        if user is None:
            return self.home
        if not quiet(["test", "-x", str(self.home)], user):
            digest = hashlib.sha256(str(SCRATCH).encode()).hexdigest()[:12]
            return private_directory(Path(f"/tmp/retrysafe-{self.name}-{digest}"), user)
        return private_directory(self.home / "cluster", user)

    def run_step(self, command: list[str], text: str) -> None:
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False, **identity(self.user()))
        if done.returncode:
            raise ServiceError(f"`{shlex.join(command)}` failed:\n{done.stdout}{done.stderr}")

    @abstractmethod
    def packages(self) -> list[str]:
        """The Debian packages that are missing."""

    def install(self) -> None:
        """Install all that is missing. Raises CannotInstall."""
        self.install_packages()

    def install_packages(self) -> None:
        """Install the packages that are missing."""
        if self.packages():  # a service that lacks none need not wait for others
            apt_install(self.packages)

    @abstractmethod
    def prepare(self) -> None:
        """Make the data directory, when there is none yet."""

    @abstractmethod
    def command(self) -> list[str]:
        """The server's command line; it stays in the foreground."""

    @abstractmethod
    def ready(self) -> bool:
        """Tell whether the server answers a request."""

    @abstractmethod
    def url(self, port: int) -> str:
        """Return the URL for the tests."""


class Programs(Service):
    """Programs that tests start themselves: they are installed, and no server runs."""

    default_port = 0

    @property
    @abstractmethod
    def directory(self) -> Path:
        """The directory of the programs, once they are installed."""

    def packages(self) -> list[str]:
        return []

    def prepare(self) -> None:
        """There is no data."""

    def command(self) -> list[str]:
        raise ServiceError("it is no server")

    def ready(self) -> bool:
        return self.directory.is_dir()

    def url(self, port: int) -> str:
        return str(self.directory)


def private_directory(path: Path, user: str) -> Path:
    """A directory that only the user may enter; refuses one that somebody else put there."""
    owner = pwd.getpwnam(user)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        os.chown(path, owner.pw_uid, owner.pw_gid)
    if path.is_symlink() or path.stat().st_uid != owner.pw_uid:
        raise ServiceError(f"{path} exists and does not belong to {user}")
    return path
