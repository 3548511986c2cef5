"""Prometheus and promtool."""

from __future__ import annotations

import shlex
from pathlib import Path

from serviceparts.installing import of_debian, unpack_debian
from serviceparts.service import Programs


class Prometheus(Programs):
    """The server and its tool, as Debian's unstable distribution builds them."""

    name = "prometheus"
    NAMES = ("prometheus", "promtool")

    @property
    def directory(self) -> Path:
        return self.home / "bin"

    def install(self) -> None:
        unpacked = self.home / "unpacked"
        unpack_debian("sid", ["prometheus"], unpacked)
        self.directory.mkdir(exist_ok=True)
        for name in self.NAMES:
            program = self.directory / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join(of_debian(unpacked, f"usr/bin/{name}"))} "$@"\n')
            program.chmod(0o755)
