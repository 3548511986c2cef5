"""Drives an operation: once for sync code, once for async code, with a hedged copy where the policy allows it (C17).

Hedging follows J. Dean and L. A. Barroso, "The Tail at Scale", Communications of the ACM, 2013.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Protocol

from retrysafe.http.client.hosts import Host
from retrysafe.http.client.operation import Ending, Refresh, Reply, Send, Step
from retrysafe.http.client.results import Answer, Failure, Kind, Result, Verdict, judge


def decides(result: Result) -> bool:
    """Tell whether a result counts although another copy is open: an answer that no other copy can contradict.

    A refusal may come from in front of the layer that knows keys, while the other copy is carried out.
    """
    return isinstance(result, Answer) and (result.is_replay or 200 <= result.status < 300)


def best(results: Sequence[Result], host: Host | None) -> Result:
    """The result that counts when no copy is open any more."""

    def rank(result: Result) -> int:
        if isinstance(result, Failure):
            return 1 if result.kind is Kind.AMBIGUOUS else 0
        if decides(result):
            return 5
        if result.status == 409:
            return 2
        return 3 if judge(result, host) is Verdict.RETRY else 4

    return max(results, key=rank)


Program = Generator[Step, Reply, Ending]


class Wire(Protocol):
    """One request on its way through a client library.

    ``send`` sends it once, reads what comes as far as it is kept, and raises only what is no failure of a request;
    ``discard`` lets a response go that is not the last one; ``refresh`` gets new credentials, as headers, or None if
    nobody said how to.
    """

    def send(self, step: Send, /) -> Result: ...

    def discard(self, answer: Answer, /) -> None: ...

    def refresh(self) -> Mapping[str, str] | None: ...


class AsyncWire(Protocol):
    """`Wire` for async code."""

    async def send(self, step: Send, /) -> Result: ...

    async def discard(self, answer: Answer, /) -> None: ...

    async def refresh(self) -> Mapping[str, str] | None: ...


def drive(program: Program, wire: Wire, sleep: Callable[[float], None]) -> Ending:
    """Do what the operation asks for until it ends."""
    reply: Reply = None
    last: Answer | None = None
    try:
        while True:
            step = program.send(reply)
            if last is not None and not isinstance(step, Refresh):
                wire.discard(last)
                last = None
            if isinstance(step, Send):
                reply = _sent(wire, step) if step.hedge_after is None else _hedged(wire, step, step.hedge_after)
                last = reply if isinstance(reply, Answer) else None
            elif isinstance(step, Refresh):
                reply = wire.refresh()
            else:
                sleep(step.seconds)
                reply = None
    except StopIteration as stop:
        ending: Ending = stop.value
        return ending
    except BaseException:
        if last is not None:
            wire.discard(last)
        raise
    finally:
        program.close()


async def adrive(program: Program, wire: AsyncWire, sleep: Callable[[float], Awaitable[None]]) -> Ending:
    """`drive` for async code."""
    import anyio

    reply: Reply = None
    last: Answer | None = None
    try:
        while True:
            step = program.send(reply)
            if last is not None and not isinstance(step, Refresh):
                await wire.discard(last)
                last = None
            if isinstance(step, Send):
                reply = await (
                    _asent(wire, step) if step.hedge_after is None else _ahedged(wire, step, step.hedge_after)
                )
                last = reply if isinstance(reply, Answer) else None
            elif isinstance(step, Refresh):
                reply = await wire.refresh()
            else:
                await sleep(step.seconds)
                reply = None
    except StopIteration as stop:
        ending: Ending = stop.value
        return ending
    except BaseException:
        if last is not None:
            with anyio.CancelScope(shield=True):
                await wire.discard(last)
        raise
    finally:
        program.close()


def _sent(wire: Wire, step: Send) -> Result:
    result = wire.send(step)
    step.ended(result)
    return result


async def _asent(wire: AsyncWire, step: Send) -> Result:
    result = await wire.send(step)
    step.ended(result)
    return result


class _Copies:
    """Copies of one request in threads of their own, which nothing can stop: who comes too late is let go."""

    def __init__(self, wire: Wire, step: Send) -> None:
        self._wire, self._step = wire, step
        self._arrived: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = False

    def start(self) -> None:
        threading.Thread(target=self._send, name="retrysafe request", daemon=True).start()

    def _send(self) -> None:
        try:
            result: Result | BaseException = self._wire.send(self._step)
        except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
            result = error
        with self._lock:
            if not self._over:
                self._arrived.put(result)
                return
        if isinstance(result, Answer):
            self._wire.discard(result)

    def next(self, seconds: float | None) -> Result | None:
        """The next result; None if there is none in so many seconds."""
        try:
            result = self._arrived.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(result, BaseException):
            raise result
        return result

    def end(self, chosen: Result | None, seen: list[Result]) -> None:
        """Cancel every attempt that was not chosen."""
        with self._lock:
            self._over = True
        while not self._arrived.empty():
            late = self._arrived.get()
            if isinstance(late, Answer):
                seen.append(late)
        for result in seen:
            if isinstance(result, Answer) and result is not chosen:
                self._wire.discard(result)


def _hedged(wire: Wire, step: Send, after: float) -> Result:
    """Send, and send a copy if no result has come after so long; the better result counts."""
    copies = _Copies(wire, step)
    copies.start()
    sent, may_hedge = 1, True
    seen: list[Result] = []
    chosen: Result | None = None
    try:
        while chosen is None:
            result = copies.next(after if may_hedge else None)
            if result is None:
                may_hedge = False
                if step.admits_hedge():
                    copies.start()
                    sent += 1
                continue
            seen.append(result)
            step.ended(result)
            if len(seen) == sent:
                chosen = best(seen, step.host)
            elif decides(result):
                chosen = result
        return chosen
    finally:
        copies.end(chosen, seen)


async def _ahedged(wire: AsyncWire, step: Send, after: float) -> Result:
    """`_hedged` for async code: the copy that lost is cancelled."""
    import anyio

    seen: list[Result] = []
    errors: list[Exception] = []
    sent = 1
    chosen: list[Result] = []

    async with anyio.create_task_group() as tasks:

        async def one() -> None:
            try:
                seen.append(await _asent(wire, step))
            except Exception as error:  # noqa: BLE001 - it is raised below, and not in a group
                errors.append(error)
            else:
                if len(seen) == sent:
                    chosen.append(best(seen, step.host))
                elif decides(seen[-1]):
                    chosen.append(seen[-1])
            if chosen or errors:
                tasks.cancel_scope.cancel()

        tasks.start_soon(one)
        await anyio.sleep(after)
        if step.admits_hedge():
            sent += 1
            tasks.start_soon(one)
    if errors and not chosen:
        raise errors[0]
    for result in seen:
        if isinstance(result, Answer) and result is not chosen[0]:
            await wire.discard(result)
    return chosen[0]
