"""The two drivers of programs. Nothing else in retrysafe exists once for sync and once for async logic."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from retrysafe.errors import StoreUnavailable
from retrysafe.ports import Ask, AsyncExecutor, Executor, Steps

R = TypeVar("R")


def ask(request: Ask[R], *, again: bool = False) -> Generator[Ask[Any], Any, R]:
    """Put one ask; with ``again`` put it once more if the store did not answer
    what it was sent.

    Only asks that recognise their own lost reply, by attempt id, may be put again.
    """
    try:
        answer: R = yield request
    except StoreUnavailable as error:
        if not again or error.unsent:
            raise
        answer = yield request
    return answer


def run(steps: Steps[R], execute: Executor) -> R:
    """Drive a program on a sync executor."""
    try:
        put = next(steps)
        while True:
            try:
                answer = put.parse(execute(put.request))
            except Exception as error:  # noqa: BLE001 - the program decides
                put = steps.throw(error)
            else:
                put = steps.send(answer)
    except StopIteration as stop:
        outcome: R = stop.value
        return outcome
    finally:
        steps.close()


async def arun(steps: Steps[R], execute: AsyncExecutor) -> R:
    """Drive a program on an async executor."""
    try:
        put = next(steps)
        while True:
            try:
                answer = put.parse(await execute(put.request))
            except Exception as error:  # noqa: BLE001 - the program decides
                put = steps.throw(error)
            else:
                put = steps.send(answer)
    except StopIteration as stop:
        outcome: R = stop.value
        return outcome
    finally:
        steps.close()
