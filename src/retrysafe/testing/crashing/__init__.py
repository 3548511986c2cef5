"""Crashes an operation at each of its steps, retries it, and shows what happened twice."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pickle import PicklingError
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.testing.crashing.children import die_with_parent, is_forkable
from retrysafe.testing.crashing.exploring import Exploration, explore
from retrysafe.testing.crashing.points import Action, Call, Place, Point
from retrysafe.testing.crashing.report import Report, Violation
from retrysafe.testing.crashing.working import Experiment

__all__ = ["Action", "Call", "Place", "Point", "Report", "Violation", "crash_points"]

OURS = "retrysafe-"
"""The beginning of our threads' names."""


def crash_points(
    run: Callable[[Any], Any],
    *,
    fresh: Callable[[], Any],
    check: Callable[[Any], Any],
    watch: tuple[str, ...] = (),
    pairs: int = 20,
    seed: int = 0,
    patience: float = 30.0,
) -> Report:
    """Crash ``run`` at every call that leaves its process, retry it, and compare with a run that did not crash.

    One run is recorded. Then, at each of its calls (its boundaries), the process is killed before the call; killed
    after it, so that the reply is lost; cancelled; stopped while a copy takes over a lapsed lease; and stopped while a
    concurrent copy runs. Each time on fresh state, in processes of their own, and retried until it ends. Pairs
    of crashes are sampled.

    run: performs the operation once, given what ``fresh`` returned: a function or a coroutine function. It opens
        its connections itself, and makes the same calls on each run.
    fresh: makes new state outside the process (a file, a schema, a server's database), also migrates it, and returns
        its description: a path or a DSN, something that can be pickled.
    check: raises when the invariant is broken, given the same description.
    watch: more functions whose calls are boundaries, as "package.module:Class.method". They count as requests with
        an effect. Known are DB-API drivers (sqlite3, psycopg, PyMySQL, asyncmy, aiosqlite, and others through
        SQLAlchemy), asyncpg, redis, httpx, requests, urllib, aiohttp, smtplib, botocore, and retrysafe's stores.
    pairs: how many pairs of crashes to sample.
    seed: what the sample follows from.
    patience: seconds for each process, retries included.

    At the end of each point, these must be as without a crash: what ``check`` checks; the rows of the tables that
    the run names, but for columns that differ between two undisturbed runs; and how many effects were asked for by POST
    and PATCH requests and mails, counting requests with the same idempotency key once.

    Returns a `Report`; `Report.ok` says whether there was no violation, and ``str(report)`` what there was.

    Raises `ConfigurationError` when there is nothing to learn: state in memory, a run that fails, is not
    deterministic, or makes no call that can be seen; a system that cannot fork.
    """
    if not is_forkable():
        raise ConfigurationError("crash_points() needs a system with fork, such as Linux or macOS.")
    if not all(":" in target for target in watch):  # also of a text, whose characters these then are
        raise ConfigurationError('watch= is a tuple of names like "package.module:Class.method".')
    experiment = Experiment(run, fresh, check, patience)
    return _in_a_process_of_its_own(Exploration(experiment, tuple(watch), pairs, seed))


def _in_a_process_of_its_own(wanted: Exploration) -> Report:
    """Explore in a process without connections and threads: forked from this one, or spawned where it has threads."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = _start(there, wanted)
    there.close()
    try:
        found = here.recv()
    except EOFError:
        found = ConfigurationError("crash_points(): the exploring process died.")
    except BaseException:  # Ctrl-C, say: whatever it has started ends with it
        process.kill()
        raise
    finally:
        process.join()
    if isinstance(found, Exception):
        raise found
    report: Report = found
    return report


def _start(there: Any, wanted: Exploration) -> BaseProcess:
    arguments: dict[str, Any] = {"target": _explore, "args": (there, wanted), "name": "crash points"}
    if sys.platform != "darwin" and not _threads():
        process: BaseProcess = multiprocessing.get_context("fork").Process(**arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads that are not the interpreter's own
            process.start()
        return process
    process = multiprocessing.get_context("spawn").Process(**arguments)
    try:
        process.start()
    except (AttributeError, TypeError, ValueError, PicklingError) as error:
        raise ConfigurationError(
            f"crash_points() cannot fork this process, which has threads ({_threads()}), and cannot give run, fresh "
            f"and check to a new one: {error}. Define them at the top of a module, or end the threads."
        ) from error
    return process


def _explore(there: Any, wanted: Exploration) -> None:
    die_with_parent()
    try:
        there.send(explore(wanted))
    except Exception as error:  # noqa: BLE001 - for the process that asked
        there.send(error if isinstance(error, ConfigurationError) else ConfigurationError(f"crash_points(): {error!r}"))


def _threads() -> str:
    """Threads that forbid to fork. Ours do not: heartbeats, sweepers and writers are made to be forked."""
    others = [one for one in threading.enumerate() if one is not threading.main_thread()]
    foreign = [one for one in others if not isinstance(one, threading._DummyThread)]
    return ", ".join(one.name for one in foreign if not one.name.startswith(OURS))
