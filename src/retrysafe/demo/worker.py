"""A worker process: it charges what it is handed, and dies or stops where the schedule says so."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from typing import Any

from retrysafe import InProgress, LeaseLost, Occurrence, OutcomeUnknown, RetrysafeError, StoreUnavailable
from retrysafe.connect import connect
from retrysafe.demo import lanes
from retrysafe.demo.client import Bank, Mishaps, Refused, Unanswered, mishaps
from retrysafe.demo.lanes import Lane, Pay, Setting
from retrysafe.demo.payments import Payment
from retrysafe.demo.schedule import Fault
from retrysafe.demo.talk import Ending, How, Say, pack, packed_ending


def hear() -> dict[str, Any] | None:
    """The coordinator's next message; None when there will be no more."""
    line = sys.stdin.buffer.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def say(line: bytes) -> None:
    """Tell the coordinator; a short line reaches a pipe whole or not at all."""
    os.write(1, line)


def die() -> None:
    """Be killed, as by the kernel when memory runs out: nothing is closed and nothing cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Be stopped, every thread of the process, until the coordinator lets it go on."""
    say(pack({"say": Say.PAUSING}))
    os.kill(os.getpid(), signal.SIGSTOP)
    say(pack({"say": Say.RESUMED}))


class Scheduled(Mishaps):
    """The mishaps of the delivery that this worker is busy with."""

    def __init__(self) -> None:
        self.fault = None
        self.recognised = False
        self.reached = False

    def begin(self, fault: Fault | None) -> None:
        """Take up a delivery."""
        self.fault = fault
        self.recognised = False
        self.reached = False

    def before_charge(self) -> None:
        """The bank has not been called yet."""
        self.reached = True
        say(pack({"say": Say.REACHED}))
        match self.fault:
            case Fault.CONCURRENT:
                if hear() is None:
                    sys.exit()
            case Fault.KILL_BEFORE_CHARGE:
                die()
            case Fault.PAUSE_BEFORE_CHARGE:
                stop()

    def after_charge(self, *, recognised: bool) -> None:
        """The bank has answered."""
        self.recognised = recognised
        match self.fault:
            case Fault.KILL_AFTER_CHARGE:
                die()
            case Fault.PAUSE_AFTER_CHARGE:
                stop()

    def before_answer(self) -> None:
        """All is noted, and the coordinator has not been told."""
        if self.fault is Fault.KILL_BEFORE_ANSWER and self.reached:
            die()


def ending(pay: Pay, payment: Payment) -> Ending:
    """Charge one payment, and say how it ended."""
    try:
        pay(payment)
        return Ending(How.DONE)
    except Unanswered as error:
        return Ending(How.RETRY, why=str(error))
    except InProgress as error:
        return Ending(How.CONFLICT, retry_after=error.retry_after)
    except OutcomeUnknown:
        return Ending(How.UNCERTAIN)
    except LeaseLost:
        return Ending(How.FENCED)
    except StoreUnavailable as error:
        return Ending(How.UNAVAILABLE, why=error.detail)
    except (RetrysafeError, Refused, sqlite3.Error) as error:
        return Ending(How.FAILED, why=f"{type(error).__name__}: {error}".partition("\n")[0])


class Told:
    """An observer: the names of what the boundary has told about one delivery."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, occurrence: Occurrence, /) -> None:
        """Take note."""
        self.names.append(occurrence.name)


def work(pay: Pay, scheduled: Scheduled, told: Told) -> None:
    """Take deliveries until there are no more."""
    say(pack({"say": Say.READY}))
    while (message := hear()) is not None:
        scheduled.begin(Fault[message["fault"]] if message["fault"] else None)
        told.names.clear()
        end = ending(pay, Payment.from_json(message["payment"]))
        if end.how is How.DONE:
            scheduled.before_answer()
            end = end._replace(replayed=not scheduled.reached)
        say(packed_ending(end._replace(recognised=scheduled.recognised, told=tuple(told.names))))


def serve(setting: Setting) -> None:
    """Work in the lane of the setting."""
    scheduled, told = Scheduled(), Told()
    mishaps.set(scheduled)
    bank, keys = Bank(setting.bank_port), setting.bank_has_keys
    if setting.lane == Lane.UNSAFE:
        work(lanes.bare(bank), scheduled, told)
    elif setting.lane == Lane.NAIVE:
        work(lanes.naive(lanes.bare(bank), setting.keys_file), scheduled, told)
    else:
        payments = lanes.boundary(setting.store, run=setting.run, bank_has_keys=keys, observers=[told])
        try:
            work(lanes.retrysafe(lanes.guarded(bank, bank_has_keys=keys), payments), scheduled, told)
        finally:
            payments.close()


def main() -> None:
    """Supervise one worker: fork it, and fork it again when it was killed.

    The supervisor has everything imported and nothing open, so a new worker is there at once. The first
    line on standard input is the setting; all further lines are for the worker.
    """
    first = hear()
    if first is None:
        return
    setting = Setting(**first)
    if setting.lane == Lane.RETRYSAFE:
        connect(setting.store).close()  # imports the store's library
    while pid := os.fork():
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))
        say(pack({"say": Say.KILLED}))
    serve(setting)


if __name__ == "__main__":
    main()
