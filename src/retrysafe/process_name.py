"""What a participant is known by among others, such as a consumer or a relay: in each process by another name."""

from __future__ import annotations

import os
import secrets


class ProcessName:
    """A name that nobody else has: what was made before a fork is somebody else in every process that uses it.

    Arguments:
        prefix: what it begins with.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._process = 0
        self._name = ""

    def __str__(self) -> str:
        if self._process != os.getpid():
            self._name = f"{self._prefix}{os.getpid()}:{secrets.token_hex(8)}"
            self._process = os.getpid()
        return self._name
