"""Waiting for a server that may be silent: what is asked in a thread keeps neither a stop nor a process from ending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from retrysafe.stop_signal import StopSignal

T = TypeVar("T")

EVERY = 1.0
"""Seconds after which a stop is looked for, and rounds are worked."""


async def in_daemon(call: Callable[[], T]) -> T:
    """Call it in a thread that keeps no process from ending: a silent server may take any time."""
    answer: Future[T] = Future()

    def answering() -> None:
        if not answer.set_running_or_notify_cancel():  # from now on it is not cancelled with its waiter
            return
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answer.set_exception(error)

    Thread(target=answering, name="retrysafe-server", daemon=True).start()
    return await asyncio.wrap_future(answer)


class Stopped(Exception):
    """The relay is to stop, and the server has not answered yet."""


async def await_answer(
    call: Callable[[], T], stop: StopSignal, work_round: Callable[[], Awaitable[bool]] | None = None
) -> T:
    """Wait for the server's answer, with a round over the table every second: a slot can take long to make.

    Raises `Stopped` within a second of the signal.
    """
    calling = asyncio.ensure_future(in_daemon(call))
    found = False
    try:
        while not (await asyncio.wait({calling}, timeout=0 if found else EVERY))[0]:
            if stop.rung:
                raise Stopped
            found = work_round is not None and await work_round()
        return calling.result()
    finally:
        calling.cancel()
