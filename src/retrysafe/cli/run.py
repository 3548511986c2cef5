"""`retrysafe run`: run a command once for each key, as from cron or a timer.

The first one with a key runs the command; another one meanwhile, on any machine, exits with 75 (EX_TEMPFAIL), and so it
does if the store cannot be reached. Later ones print the end of its output again and exit as it did; of stdout and
stderr the last 64 KiB are kept for that. The command finds its key in RETRYSAFE_KEY, the same when it is run again, and
the number of the attempt in RETRYSAFE_TOKEN, higher for each later one. SIGTERM, SIGINT and SIGHUP are passed on to it.

If a signal has killed the command or this program, the outcome is in doubt. By default it is then not run again: settle
the key with `retrysafe keys`. Later ones print the text that it was settled to, and exit with 0. With --effects keyed
it is run again, and so it is after any exit code but 0. A command that exits with 75 itself has not done its work, and
is run again the next time. If the store is away when the command ends, its end is stored as long as the lease lasts.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, Any

from retrysafe.boundary import Boundary
from retrysafe.claims.claim import Claim
from retrysafe.claims.codec import JSONCodec
from retrysafe.claims.decorator import fingerprint_of
from retrysafe.claims.heartbeat import for_thread
from retrysafe.cli.opening import add_store_option, secret_of, store_of
from retrysafe.cli.options import add_option, add_verb
from retrysafe.errors import ConfigurationError, InProgress, KeyReused, LeaseLost, StoreMisconfigured, StoreUnavailable
from retrysafe.protocol.records import StoredResult

KEPT = 64 << 10
"""Bytes of each of its outputs that are stored."""
TEMPORARY = 75
_LOOK = 1.0
"""Seconds between two looks whether the lease is still held, and for which outputs may stay open after the command."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _EndCodec(JSONCodec):
    """The ends of commands: exit code and outputs. Of any other JSON that a person gives it makes the output."""

    def decode_given(self, stored: StoredResult, annotation: Any) -> Any:
        given = self.decode(stored, annotation)
        ended = {"code": 0, "stdout": "", "stderr": ""}
        if isinstance(given, dict) and given and all(type(given[name]) is type(ended.get(name)) for name in given):
            return ended | given
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
        return ended | {"stdout": "" if given is None else text if text.endswith("\n") else f"{text}\n"}


class CommandEnded(Exception):
    """The command has ended without an exit code that could be stored."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "run", "run a command once for each key", run, __doc__)
    add_store_option(parser)
    add_option(parser, "--key KEY", "what is to be done once, such as backup-2026-11-29", required=True)
    add_option(parser, "--scope TEXT", "the scope: the same key in another one is done by itself (default: none)")
    add_option(parser, "--lease TIME", "how long a machine that has died keeps the key", "1m")
    add_option(parser, "--window TIME", "how long the key is remembered", "7d")
    add_option(
        parser,
        "--effects",
        "if it fails or is in doubt: keep that, or run it again under the same RETRYSAFE_KEY",
        "external",
        choices=["external", "keyed"],
    )
    add_option(parser, "command COMMAND", "after --", nargs=argparse.REMAINDER)


def run(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise ConfigurationError("The command is missing: retrysafe run --key KEY -- COMMAND. Nothing was run.")
    clocks = {"lease": options.lease, "window": options.window}
    boundary = Boundary("run", store=store_of(options), effects=options.effects, secret=secret_of(options), **clocks)
    entry, printed = boundary.entrypoint, fingerprint_of(command)
    try:
        with entry.open(
            options.key, operation=boundary.name, fingerprint=printed, scope=options.scope, codec=_EndCodec()
        ) as claim:
            if not claim.replayed:
                claim.result = _carry_out(claim, command, keeps_failure=options.effects == "external")
    except StoreMisconfigured:
        raise
    except (InProgress, StoreUnavailable) as error:
        return _refuse(error.detail or "It is running already.", TEMPORARY)
    except KeyReused:
        return _refuse("The key is another command's. Nothing was run; give this one a key of its own.", 2)
    except CommandEnded as ended:
        return _refuse(str(ended), ended.code)
    finally:
        for_thread(entry.backend).drain()
        boundary.close()
    if claim.replayed:
        sys.stdout.write(claim.result["stdout"])
        sys.stderr.write(claim.result["stderr"])
    code: int = claim.result["code"]
    return code


def _refuse(text: str, code: int) -> int:
    print(f"retrysafe run: {text}", file=sys.stderr)
    return code


def _carry_out(claim: Claim, command: list[str], *, keeps_failure: bool) -> dict[str, Any]:
    """Run the command; the result is its exit code and the end of its output."""
    environment = {**os.environ, "RETRYSAFE_KEY": claim.key_for("run"), "RETRYSAFE_TOKEN": str(claim.token)}
    try:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        claim.not_executed()
        raise ConfigurationError(f"{command[0]}: {error}. Nothing was run.") from error
    stopped = threading.Event()

    def pass_on(number: int, _: object) -> None:
        if process.poll() is None:
            process.send_signal(number)
        else:
            stopped.set()

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = {
        "stdout": _Output(process.stdout, sys.stdout.fileno()),
        "stderr": _Output(process.stderr, sys.stderr.fileno()),
    }
    try:
        code = _wait(claim, process)
        for output in outputs.values():
            output.finish(stopped)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code < 0:
        raise CommandEnded(f"{command[0]} was killed by signal {-code}: its outcome is in doubt.", 128 - code)
    if code == TEMPORARY:
        claim.not_executed()
    if code == TEMPORARY or (code != 0 and not keeps_failure):
        raise CommandEnded(f"{command[0]} exited with {code}: it is run again the next time.", code)
    return {"code": code, **{name: output.end.decode(errors="replace") for name, output in outputs.items()}}


class _Output:
    """An output of the command, which is passed on as it comes.

    Attributes:
        end: the last of it.
    """

    def __init__(self, source: IO[bytes], target: int) -> None:
        self.end = b""
        self._source, self._target = source, target
        self._copying = threading.Lock()
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        while True:
            select.select([self._source], [], [])
            with self._copying:
                part = os.read(self._source.fileno(), KEPT)
                if not part:
                    return
                self.end = (self.end + part)[-KEPT:]
                with suppress(OSError):  # the reader of ours has gone: the command goes on
                    while part:
                        part = part[os.write(self._target, part) :]  # not buffered: exiting would wait for its lock

    def finish(self, stopped: threading.Event) -> None:
        """Wait until all is passed on, or `stopped`; not for a process that the command has left behind in silence."""
        self._thread.join(_LOOK)
        while self._thread.is_alive() and not stopped.is_set() and not self._is_silent():
            self._thread.join(_LOOK)

    def _is_silent(self) -> bool:
        """Tell whether nothing is being passed on, and nothing waits for that."""
        if not self._copying.acquire(blocking=False):
            return False
        try:
            return not select.select([self._source], [], [], 0)[0]
        finally:
            self._copying.release()


def _wait(claim: Claim, process: subprocess.Popen[bytes]) -> int:
    """Wait for the command. If its lease is lost, another machine may run it now: it is told to end."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK)
        try:
            claim.ensure_held()
        except LeaseLost:
            process.terminate()
            return process.wait()
