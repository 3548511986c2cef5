"""The stand-in for Google Pub/Sub: the fake of Google's client for Go, in a program of ours."""

from __future__ import annotations

import filecmp
import re
import shutil
import subprocess
from pathlib import Path

from serviceparts.installing import completed, must_succeed, unpack_debian
from serviceparts.places import CHECKOUT, LOOPBACK
from serviceparts.processes import answers_on, say
from serviceparts.service import Service

SOURCES = CHECKOUT / "scripts" / "pubsub"
_FILES = ("go.mod", "go.sum", "main.go")
_MINIMUM = 25
"""The minor version of Go 1 that the modules need."""


class PubSub(Service):
    """Topics and subscriptions in memory: it forgets them whenever it stops. It is built once for each source."""

    name = "pubsub"
    default_port = 18085
    takes_long = True

    @property
    def server(self) -> Path:
        return self.home / "server"

    def packages(self) -> list[str]:
        return []

    def install(self) -> None:
        alike, _, _ = filecmp.cmpfiles(SOURCES, self.server, _FILES, shallow=False)
        if alike != list(_FILES):
            self._build()

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        return [str(self.server / "pubsub"), "-port", str(self.port)]

    def ready(self) -> bool:
        return answers_on(self.port)

    def url(self, port: int) -> str:
        return f"pubsub://tests?endpoint=http://{LOOPBACK}:{port}"

    def _build(self) -> None:
        """In place of what was built from other sources."""
        go = self._go()
        shutil.rmtree(self.server, ignore_errors=True)
        self.server.unlink(missing_ok=True)  # a link, where a test has a server of its own
        say(f"building {SOURCES.name} with {go}")
        with completed(self.server) as fresh:
            for name in _FILES:
                shutil.copyfile(SOURCES / name, fresh / name)
            settings = ["CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOTOOLCHAIN=local"]
            build = ["go", "build", "-trimpath", "-o", "pubsub", "."]
            must_succeed(["env", "-C", str(fresh), *settings, go, *build[1:]], "the proxy of Go's modules")

    def _go(self) -> str:
        """The compiler on the path, if it is new enough, or Debian's newest, which is only unpacked."""
        found = shutil.which("go")
        if found is not None and _minor(found) >= _MINIMUM:
            return found
        directory = self.home / "go"
        unpack_debian("sid", ["golang-go"], directory)
        (program,) = directory.glob("usr/lib/go-*/bin/go")
        return str(program)


def _minor(go: str) -> int:
    shown = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"go1\.(\d+)", shown)
    return int(match[1]) if match else 0
