"""Drives an operation over a wire, with a hedged copy where the policy allows it (C17).

It is written as coroutines for both colours: in sync code a `ThreadWire` never waits, so that `run_without_loop` runs
them.

Hedging follows J. Dean and L. A. Barroso, "The Tail at Scale", Communications of the ACM, 2013.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar, TypeVarTuple

from retrysafe import lazy
from retrysafe.http.client.hosts import Host
from retrysafe.http.client.operation import OperationEnding, Refresh, Reply, Send, Step
from retrysafe.http.client.results import Failure, Kind, Result, RetryVerdict, ServerAnswer, judge
from retrysafe.http.without_loop import run_without_loop


def decides(result: Result) -> bool:
    """Tell whether a result counts although another copy is open: an answer that no other copy can contradict.

    A refusal may come from in front of the layer that knows keys, while the other copy is carried out.
    """
    return isinstance(result, ServerAnswer) and (result.is_replay or 200 <= result.status < 300)


def best(results: Sequence[Result], host: Host | None) -> Result:
    """The result that counts when no copy is open any more."""

    def rank(result: Result) -> int:
        if isinstance(result, Failure):
            return 1 if result.kind is Kind.AMBIGUOUS else 0
        if decides(result):
            return 5
        if result.status == 409:
            return 2
        return 3 if judge(result, host) is RetryVerdict.RETRY else 4

    return max(results, key=rank)


T = TypeVar("T")
Given = TypeVarTuple("Given")
Program = Generator[Step, Reply, OperationEnding]


class ClientWire(ABC):
    """One request on its way through a client library."""

    @abstractmethod
    async def send(self, step: Send, /) -> Result:
        """Send it once, and read what comes as far as it is kept; raises only what is no failure of a request."""

    @abstractmethod
    async def discard(self, answer: ServerAnswer, /) -> None:
        """Let a response go that is not the last one, to the end also when cancelled."""

    @abstractmethod
    async def refresh(self) -> Mapping[str, str] | None:
        """Return new credentials, as headers; None without a function that gets them."""

    @abstractmethod
    async def pause(self, seconds: float, /) -> None: ...

    @abstractmethod
    async def send_hedged(self, step: Send, after: float, /) -> Result:
        """Send, and send a copy if no result has come after so long; the better result counts."""

    async def write(self, work: Callable[[*Given], T], *given: *Given) -> tuple[T, BaseException | None]:
        """Write to the journal, to the end: the result, and the cancellation that came meanwhile."""
        return work(*given), None


async def drive(program: Program, wire: ClientWire) -> OperationEnding:
    """Do what the operation asks for until it ends."""
    reply: Reply = None
    last: ServerAnswer | None = None
    try:
        while True:
            step = program.send(reply)
            if last is not None and not isinstance(step, Refresh):
                await wire.discard(last)
                last = None
            if isinstance(step, Send):
                if step.hedge_after is None:
                    step.ended(reply := await wire.send(step))
                else:
                    reply = await wire.send_hedged(step, step.hedge_after)
                last = reply if isinstance(reply, ServerAnswer) else None
            elif isinstance(step, Refresh):
                reply = await wire.refresh()
            else:
                await wire.pause(step.seconds)
                reply = None
    except StopIteration as stop:
        ending: OperationEnding = stop.value
        return ending
    except BaseException:
        if last is not None:
            await wire.discard(last)
        raise
    finally:
        program.close()


class ThreadWire(ClientWire):
    """A wire of sync code, which waits for nothing."""

    async def send_hedged(self, step: Send, after: float, /) -> Result:
        copies = _Copies(self, step)
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


class _Copies:
    """Copies of one request in threads of their own, which nothing can stop: who comes too late is let go."""

    def __init__(self, wire: ThreadWire, step: Send) -> None:
        self._wire, self._step = wire, step
        self._arrived: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = False

    def start(self) -> None:
        threading.Thread(target=self._send, name="retrysafe request", daemon=True).start()

    def _send(self) -> None:
        try:
            result: Result | BaseException = run_without_loop(self._wire.send(self._step))
        except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
            result = error
        with self._lock:
            if not self._over:
                self._arrived.put(result)
                return
        if isinstance(result, ServerAnswer):
            run_without_loop(self._wire.discard(result))

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
            if isinstance(late, ServerAnswer):
                seen.append(late)
        for result in seen:
            if isinstance(result, ServerAnswer) and result is not chosen:
                run_without_loop(self._wire.discard(result))


class TaskWire(ClientWire):
    """A wire of async code: the copy that lost is cancelled."""

    async def send_hedged(self, step: Send, after: float, /) -> Result:
        seen: list[Result] = []
        errors: list[Exception] = []
        sent = 1
        chosen: list[Result] = []

        async with lazy.anyio.create_task_group() as tasks:

            async def one() -> None:
                try:
                    result = await self.send(step)
                    step.ended(result)
                    seen.append(result)
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
            await lazy.anyio.sleep(after)
            if step.admits_hedge():
                sent += 1
                tasks.start_soon(one)
        if errors and not chosen:
            raise errors[0]
        for result in seen:
            if isinstance(result, ServerAnswer) and result is not chosen[0]:
                await self.discard(result)
        return chosen[0]
