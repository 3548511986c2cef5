"""Child processes: started beside us, spoken to over pipes of their own, and gone when we are.

Each child leads a process group in our session. So Ctrl-C reaches us alone; and if we vanish, the
children's standard input ends, while the kernel hangs up on those that are stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import retrysafe

STARTING = 30.0
ENDING = 5.0
"""Seconds that a child gets to start, and to end by itself."""
_ROOTS = dict.fromkeys(str(Path(file).parent.parent) for file in (retrysafe.__file__, __file__))
"""The paths by which a child finds both packages, as we have found them."""


class DemoError(Exception):
    """The demo cannot go on; the message says why, in one line."""


class Child:
    """One child process running a module of the demo. It inherits the descriptors ``inherited`` and no others."""

    def __init__(self, module: str, *arguments: str, log: Path, inherited: Sequence[int] = ()) -> None:
        self.log = log
        paths = [*_ROOTS, *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"retrysafe_demo.{module}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                process_group=0,
                pass_fds=inherited,
                bufsize=0,
            )

    @property
    def pipe(self) -> int:
        """The descriptor of what the child says."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def tell(self, line: bytes) -> None:
        """Write to the child; if it is dead, the end of its output will say so."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line)

    def signal(self, number: int) -> None:
        """Send a signal to the child and to what it has forked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def hang_up(self) -> None:
        """Let the child end by itself."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def finish(self) -> bool:
        """Wait for an end that `hang_up` has begun; False when it had to be forced."""
        try:
            self.process.wait(ENDING)
            return True
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.remove()

    def remove(self) -> None:
        """Make sure that nothing of the child is left."""
        self.hang_up()
        if self.process.returncode is None:
            self.signal(signal.SIGKILL)  # its number cannot be another's yet: we have not waited for it
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def last_words(self) -> str:
        """The last line that the child wrote to standard error."""
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")
