"""A worker process: it charges what it is asked for, and dies or stops where the schedule says so.

It takes deliveries over its pipe and calls a function, or it serves the API of its lane (`serving`).
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence

from retrysafe import InProgress, LeaseLost, OutcomeUnknown, RetrysafeError, StoreUnavailable
from retrysafe.backends.registry import connect
from retrysafe_demo import lanes
from retrysafe_demo.client import Bank, Refused, Unanswered, mishaps
from retrysafe_demo.lanes import Lane, Pay, Setting
from retrysafe_demo.payments import Payment
from retrysafe_demo.schedule import Fault
from retrysafe_demo.scheduled import Scheduled, Telling, hear, say, say_ready
from retrysafe_demo.talk import Ending, How, Say, pack


def ending(pay: Pay, payment: Payment) -> Ending:
    """Charge one payment, and say how it ended."""
    try:
        pay(payment)
        return Ending(How.DONE)
    except Unanswered as error:
        return Ending(How.RETRY, why=str(error))
    except InProgress as error:
        return Ending(How.CONFLICT, retry_after=error.retry_after)
    except LeaseLost:
        return Ending(How.CONFLICT)
    except OutcomeUnknown:
        return Ending(How.UNCERTAIN)
    except StoreUnavailable as error:
        return Ending(How.UNAVAILABLE, why=error.detail)
    except (RetrysafeError, Refused, sqlite3.Error) as error:
        return Ending(How.FAILED, why=f"{type(error).__name__}: {error}".partition("\n")[0])


def work(pay: Pay) -> None:
    """Take deliveries until there are no more."""
    say_ready()
    while (message := hear()) is not None:
        fault = Fault[message["fault"]] if message["fault"] else None
        scheduled = Scheduled(message["attempt"], fault, _wait_for_a_word)
        mishaps.set(scheduled)
        end = ending(pay, Payment.from_json(message["payment"]))
        if end.how is How.DONE:
            scheduled.before_answer()
            end = end._replace(replayed=not scheduled.reached)
        say(Say.ENDED, attempt=scheduled.number, **end._asdict())


def _wait_for_a_word(number: int) -> None:
    if hear() is None:
        sys.exit()


def serve(setting: Setting) -> None:
    """Work in the lane of the setting."""
    bank, keys = Bank(setting.bank_port), setting.bank_has_keys
    if setting.lane == Lane.UNSAFE:
        work(lanes.bare(bank))
    elif setting.lane == Lane.NAIVE:
        work(lanes.naive(lanes.bare(bank), setting.keys_file))
    else:
        payments = lanes.boundary(setting.store, run=setting.run, bank_has_keys=keys, observers=[Telling()])
        try:
            work(lanes.retrysafe(lanes.guarded(bank, bank_has_keys=keys), payments))
        finally:
            payments.close()


def main() -> None:
    """Supervise the workers of a lane. The line on standard input says which, and which pipes are whose."""
    first = hear()
    if first is None:
        return
    setting = Setting(**first["setting"])
    if setting.lane == Lane.RETRYSAFE:
        connect(setting.store).close()  # imports the store's library
    begin = serve
    if setting.listener is not None:
        from retrysafe_demo import serving

        serving.prepare()
        begin = serving.serve
    supervise(first["pipes"], lambda: begin(setting))


def supervise(pipes: Sequence[tuple[int, int]], begin: Callable[[], None]) -> None:
    """Fork a worker for each pair of pipes, and again when it was killed.

    The supervisor has everything imported and nothing open, so a new worker is there at once.
    """
    workers = {_fork(pair, pipes, begin): pair for pair in pipes}
    while workers:
        process, status = os.wait()
        pair = workers.pop(process)
        if status != 0:
            os.write(pair[1], pack({"say": Say.KILLED}))
            workers[_fork(pair, pipes, begin)] = pair


def _fork(pair: tuple[int, int], pipes: Sequence[tuple[int, int]], begin: Callable[[], None]) -> int:
    process = os.fork()
    if process == 0:
        os.dup2(pair[0], 0)
        os.dup2(pair[1], 1)
        for end in itertools.chain(*pipes):
            os.close(end)
        begin()
        sys.exit()
    return process


if __name__ == "__main__":
    main()
