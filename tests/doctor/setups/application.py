"""Applications, set up wrongly: windows, leases and waits of their boundaries, routes, and what drifted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from retrysafe.protocol.checks import Severity
from tests.doctor.setups.form import ERROR, NOTE, WARNING, Arguments, Ground, Setup
from tests.operating.conftest import surroundings

SOUND = """
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from retrysafe import Boundary, wait
from retrysafe.http.starlette import idempotent

payments = Boundary("payments", store="sqlite:///shop.db", window="73h", lease="30s", effects="transactional")


@payments.once(key="order", operation="charge")
def charge(order: str) -> None: ...


@idempotent(payments, principal="shared")
async def pay(request: Request) -> JSONResponse:
    return JSONResponse({})


app = Starlette(routes=[Route("/payments", pay, methods=["POST"])])
"""
CONSUMING = """
from retrysafe import Boundary
from retrysafe.messaging import Inbox

inbox = Inbox(Boundary("stock", store="sqlite:///shop.db", window="1h", effects="transactional"))


@inbox.handler("reserve")
def reserve(message: object) -> None: ...


app = object()
"""
"""A consumer that remembers messages for an hour."""
LATE = """
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI

from retrysafe import Boundary
from retrysafe.http.fastapi import Idempotency


def session() -> Iterator[str]:
    yield "begun"


payments = Boundary("payments", store="sqlite:///shop.db", window="73h")
app = FastAPI()
app.router.route_class = Idempotency(payments, principal="shared").route_class


@app.post("/payments")
def pay(db: Annotated[str, Depends(session)]) -> str:
    return db
"""
"""The usual session of FastAPI: what it commits after its `yield`, it commits after the response."""
QUEUED = """
from celery import Celery

from retrysafe import Boundary
from retrysafe.tasks.celery import once

payments = Boundary("payments", store="sqlite:///shop.db", window="73h", effects="transactional")
app = Celery("shop")


@app.task(acks_late=True, reject_on_worker_lost=True)
@once(payments, key="order", operation="charge")
def charge(order: str) -> None: ...
"""
_BY_ENGINE = "from sqlalchemy import create_engine, event\n\nengine = {}\n{}\n"


def on_engine(engine: str, *further: str) -> str:
    """The sound application on an engine of its own."""
    head = _BY_ENGINE.format(engine, "\n".join(further))
    return head + SOUND.replace('store="sqlite:///shop.db"', "store=engine")


def written(ground: Ground, text: str) -> Arguments:
    """Write an application; its clients retry for 72 hours, and its requests end after 30 seconds."""
    (ground.folder / "shop.py").write_text(text, encoding="utf-8")
    return ["--app", "shop:app", "--retried-for", "72h", "--request-timeout", "30s"]


def locked(ground: Ground, text: str) -> Arguments:
    """Write an application, and its lock file."""
    asked = written(ground, text)
    command = [sys.executable, "-B", "-m", "retrysafe", "describe", "shop", "--lock", "shop.lock"]
    subprocess.run(command, cwd=ground.folder, env=surroundings(), check=True)
    return [*asked, "--lock", "shop.lock"]


def _changed(finds: str, severity: Severity, broken: str, before: str, after: str) -> Setup:
    """The sound application, with another text in place of one that it has."""
    assert SOUND.count(before) == 1, before

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        yield written(ground, SOUND.replace(before, after))

    return Setup(broken, f"`{after or before}`", finds, severity, make)


@contextmanager
def _drifted(ground: Ground) -> Iterator[Arguments]:
    asked = locked(ground, SOUND)
    written(ground, SOUND.replace('window="73h"', 'window="73h", scope="eu"'))
    yield asked


@contextmanager
def _unguarded(ground: Ground) -> Iterator[Arguments]:
    yield written(ground, SOUND.replace('@idempotent(payments, principal="shared")\n', ""))


@contextmanager
def _unguarded_task(ground: Ground) -> Iterator[Arguments]:
    yield written(ground, QUEUED.replace('@once(payments, key="order", operation="charge")\n', ""))


@contextmanager
def _lost_task(ground: Ground) -> Iterator[Arguments]:
    yield written(ground, QUEUED.replace(", reject_on_worker_lost=True", ""))


@contextmanager
def _late(ground: Ground) -> Iterator[Arguments]:
    yield written(ground, LATE)


@contextmanager
def _without(ground: Ground) -> Iterator[Arguments]:
    yield written(ground, "app = object()\n")


BROKEN = (
    _changed(
        "boundary-window",
        ERROR,
        "Clients retry for 72 hours, and a key is known for 24.",
        'window="73h"',
        'window="24h"',
    ),
    _changed(
        "boundary-memory",
        ERROR,
        "Clients retry for 72 hours, and a late retry is refused for 48.",
        'window="73h"',
        'window="24h", memory="48h", on_expired="refuse"',
    ),
    _changed(
        "boundary-lease",
        WARNING,
        "A pause of the process outlasts its lease.",
        'lease="30s", effects="transactional"',
        'lease="2s", effects="keyed"',
    ),
    _changed(
        "boundary-wait",
        WARNING,
        "Requests end after 30 seconds, and a duplicate waits for 60.",
        'window="73h"',
        'window="73h", concurrency=wait("60s")',
    ),
    _changed(
        "boundary-unknown",
        NOTE,
        "Unclear outcomes wait for a person.",
        'effects="transactional"',
        'effects="external"',
    ),
    _changed(
        "boundary-provider-forgets",
        WARNING,
        "Stripe forgets a key after a day, and retries come for three.",
        'window="73h"',
        'window="73h", providers=["stripe"]',
    ),
    _changed(
        "boundary-provider-outlasts",
        NOTE,
        "Adyen knows a key for a month, and it is new work after three days.",
        'window="73h"',
        'window="73h", providers=["adyen"]',
    ),
    _changed(
        "boundary-unnamed-operation",
        NOTE,
        "To rename a function orphans its keys.",
        ', operation="charge")',
        ")",
    ),
    Setup(
        "A route for POST is not guarded.",
        "a handler without `@idempotent`",
        "application-route",
        WARNING,
        _unguarded,
    ),
    Setup(
        "A task of a queue is not guarded.",
        "`@app.task` without `@once`",
        "application-task",
        NOTE,
        _unguarded_task,
    ),
    Setup(
        "A guarded task is acknowledged before it has run.",
        "`@app.task(acks_late=True)`",
        "application-lost-task",
        WARNING,
        _lost_task,
    ),
    Setup(
        "A dependency with `yield` commits after the response of a guarded route.",
        "`Depends(session)` in FastAPI",
        "application-late-dependency",
        WARNING,
        _late,
    ),
    Setup(
        "Keys are looked for under another scope than before.",
        '`scope="eu"`, and the lock file from before',
        "application-drift",
        ERROR,
        _drifted,
    ),
    Setup(
        "No boundary is built by the application's modules.",
        "`app = object()`",
        "application-boundaries",
        WARNING,
        _without,
    ),
)
