"""Examines one store within a limited time."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from retrysafe.admin.operator import connect
from retrysafe.backends import checks, registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.checks import Examination, gather
from retrysafe.backends.commands import naming
from retrysafe.backends.driver import arun, run
from retrysafe.backends.urls import without_password
from retrysafe.doctor import messages, runs
from retrysafe.doctor.diagnosis import Diagnosis, judge
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.protocol.checks import Facts
from retrysafe.protocol.requests import Program

R = TypeVar("R")


OF_EVERY_STORE = (
    ("Every store", checks.CHECKS),
    ("Messages in a store", messages.CHECKS),
    ("Work in steps", runs.CHECKS),
)
"""The checks that are not of one kind of store, each group with its title."""


def examination_of(kind: str) -> Examination:
    """The examination that the folder of a kind of store brings."""
    found: Examination = next(spec.load(spec.checks[kind]) for spec in registry.specs() if kind in spec.checks)
    return found


def examine(store: Any, within: float, leases: list[float]) -> list[Diagnosis]:
    """Diagnose a store. One that does not answer within so many seconds has that as its finding.

    ``leases``: those of the boundaries that use it, in seconds.
    """
    name = name_of(store)
    try:
        backend = store if isinstance(store, Backend) else connect(store)
        name = backend.address
        facts = run_within(lambda: _ask(backend, leases), within)
    except TimeoutError:
        return _unreachable(name, f"It did not answer within {within:g} s.")
    except RetrysafeError as error:
        return _unreachable(name, error.detail or str(error))
    except Exception as error:  # noqa: BLE001 - a store that breaks its driver is a finding
        return _unreachable(name, f"{type(error).__name__} while it was asked")
    shared = [check for _, group in OF_EVERY_STORE for check in group]
    return judge((*shared, *examination_of(backend.kind).checks), facts, name)


def name_of(store: Any) -> str:
    """Return a store's name in findings."""
    if isinstance(store, Backend):
        return store.address
    if not isinstance(store, str):
        return type(store).__name__
    if "://" in store:
        return without_password(store)
    try:
        return connect(store).address  # an alias of Django's is called what a boundary on it calls it
    except ConfigurationError:
        return store


def repair(store: Any, statements: tuple[str, ...], within: float) -> None:
    """Run statements that mend a finding. Raises `TimeoutError`, or what the store raises."""
    backend = store if isinstance(store, Backend) else connect(store)
    if backend.serves_sync:
        run_within(lambda: backend.tables.perform(statements), within)
    else:
        run_within(lambda: asyncio.run(_repair_async(backend, statements)), within)


async def _repair_async(backend: Backend, statements: tuple[str, ...]) -> None:
    try:
        await backend.tables.aperform(statements)
    finally:
        await backend.aclose()


def run_within(work: Callable[[], R], within: float) -> R:
    """Do work in a thread that does not keep the process alive; raise `TimeoutError` when it takes longer."""
    ended: queue.Queue[tuple[R | None, BaseException | None]] = queue.Queue()

    def run_it() -> None:
        try:
            ended.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            ended.put((None, error))

    threading.Thread(target=run_it, name="retrysafe-doctor", daemon=True).start()
    try:
        result, error = ended.get(timeout=within)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value] # only an error leaves it None


def _ask(backend: Backend, leases: list[float]) -> Facts:
    examination = examination_of(backend.kind)
    steps = _facts(backend, examination, leases)
    if not backend.serves_sync:
        return asyncio.run(_ask_async(backend, steps))
    if not backend.access.own_connections:
        return run(steps, backend.client())
    client = backend.new_client()  # a session that was opened earlier has the settings of that time
    try:
        facts = run(steps, client)
    finally:
        client.close()
    return facts if examination.apart is None else {**facts, **examination.apart(backend)}


def _facts(backend: Backend, examination: Examination, leases: list[float]) -> Program[Facts]:
    facts = yield from gather(backend, examination, leases)
    schema = facts["schema"]
    if schema is not None and schema.version >= schema.needed:
        facts = {**facts, **(yield from messages.gather(backend))}
    if schema is None or schema.version >= schema.needed:
        facts = {**facts, **(yield from runs.gather(backend))}
    return facts


async def _ask_async(backend: Backend, steps: Any) -> Facts:
    try:
        facts: Facts = await arun(steps, backend.aclient())
        return facts
    finally:
        await backend.aclose()


def _unreachable(name: str, why: str) -> list[Diagnosis]:
    shown = naming(name)
    facts = {"program": shown.program, "store": shown.store, "unreachable": why}
    return judge((checks.UNREACHABLE,), facts, name)
