"""A store with a console before it, on SQLite and PostgreSQL."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from retrysafe import Boundary
from retrysafe.console import EVERY_RIGHT, Console, Principal
from retrysafe.messaging import Handler, Inbox, InboxMessage, Outbox
from retrysafe.messaging.relay.relay import Relay
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from tests.conftest import unfetched
from tests.console.browsing import Keyboard
from tests.console.visiting import Visitor
from tests.operating.conftest import Place, command, place_of, surroundings

__all__ = ["command"]
TABLES = (
    "retrysafe_records",
    *(f"retrysafe_outbox{name}" for name in ("", "_attempts", "_dead", "_published", "_paused", "_relays")),
    *(f"retrysafe_inbox_{name}" for name in ("attempts", "dead", "sequences")),
)
ADA = Principal("ada", EVERY_RIGHT)
CARD = "4242 4242 4242 4242"
"""A text that no page may show: nothing random, such as a token or an id, has it in it."""


class Deck:
    """A store, boundaries that fill it, and consoles before it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.url = place.operators
        self.audited: list[dict[str, Any]] = []
        self._opened: list[Any] = []
        self._consumers: dict[str, Handler[..., Any]] = {}
        self._broken = False

    def console(self, principal: Principal | None = ADA, **options: Any) -> Console:
        """A console that takes everybody for one principal."""
        made = Console(self.url, **{"access": lambda request: principal, "audit": self._audit, **options})
        self._opened.append(made)
        return made

    def boundary(self, name: str = "payments", **terms: Any) -> Boundary:
        """A boundary whose effects cannot be recognised."""
        return self.place.boundary(**{"name": name, "shared": True, **terms})

    def unknown(self, *keys: str, operation: str = "charge", **terms: Any) -> None:
        """Keys whose provider timed out."""
        boundary = self.boundary(**terms)
        for key in keys:
            with pytest.raises(TimeoutError), boundary.claim(key, operation=operation, payload={"amount": 5}):
                raise TimeoutError

    def completed(self, *keys: str, result: Any = "first", operation: str = "charge", **terms: Any) -> None:
        """Keys that are completed."""
        boundary = self.boundary(**terms)
        for key in keys:
            with boundary.claim(key, operation=operation, payload={"amount": 5}) as claim:
                claim.result = result

    def messages(self, *messages: tuple[str, str, Any]) -> None:
        """Messages in the outbox: topic, type and payload of each."""
        outbox = Outbox(self.url, source="/shop")
        boundary = self.boundary("writing", effects="transactional")
        with boundary.claim(uuid4()) as claim:
            for number, (topic, kind, payload) in enumerate(messages):
                outbox.add(claim.tx, topic, payload, key=f"k{number}", type=kind, headers={"x-secret": "header-secret"})

    def relay(self, judge: Callable[[Envelope], PublishResult]) -> None:
        """Relay once, with a broker that takes each message as the judge says."""
        Relay(self.url, _Publisher(judge), observers=()).run_once()

    def all_die(self, error: str = "HTTP 422: no such field") -> None:
        """Every message becomes a dead letter."""
        self.relay(lambda envelope: PublishResult(PublishStatus.REJECTED, error))

    def _audit(self, entry: Any, /) -> None:
        self.audited.append(dict(entry))

    def dead_in_an_inbox(self, *messages: Envelope, consumer: str = "stock") -> Handler[..., Any]:
        """Messages that a consumer has given up; returns its handler, which works from now on."""
        handle = self._consumers.get(consumer) or self._consumer(consumer)
        self._broken = True
        for message in messages:
            handle.handle(message)
        self._broken = False
        return handle

    def _consumer(self, name: str) -> Handler[..., Any]:
        boundary = self.boundary(f"inbox-{name}", effects="transactional", window="7d")

        @Inbox(boundary).handler(name, max_attempts=1)
        def handle(message: InboxMessage[Any]) -> None:
            if self._broken:
                raise LookupError("no such article")

        self._consumers[name] = handle
        return handle

    def retried(self, key: str, **terms: Any) -> Any:
        """Return the answer to a retry."""
        with self.boundary(**terms).claim(key, operation="charge", payload={"amount": 5}) as claim:
            if not claim.replayed:
                claim.result = "ran again"
            return claim.result

    def sql(self, *statements: str) -> None:
        """Change the database as only a test does."""
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as lite, lite:
                for one in statements:
                    lite.execute(one)
        else:
            with psycopg.connect(self.url, autocommit=True) as connection:
                for one in statements:
                    connection.execute(one.encode())

    def close(self) -> None:
        """Close what was opened."""
        for one in self._opened:
            one.close()
        self.place.close()


class _Publisher:
    def __init__(self, judge: Callable[[Envelope], PublishResult]) -> None:
        self._judge = judge

    def publish(self, envelopes: list[Envelope]) -> list[PublishResult]:
        return [self._judge(one) for one in envelopes]

    def close(self) -> None:
        return None


@pytest.fixture(params=["sqlite", "postgresql"])
def deck(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deck]:
    """A store of each kind."""
    yield from _deck(request.param, tmp_path)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Deck]:
    """SQLite, for what does not depend on the store."""
    yield from _deck("sqlite", tmp_path)


def _deck(kind: str, path: Path) -> Iterator[Deck]:
    made = emptied(kind, path)
    yield made
    made.close()


def emptied(kind: str, path: Path) -> Deck:
    """A store of a kind, with its tables and nothing in them."""
    made = Deck(place_of(kind, path))
    made.completed("migrates the database")
    made.sql(*(f"DELETE FROM {table}" for table in TABLES))
    return made


@pytest.fixture
async def ada(deck: Deck) -> AsyncIterator[Visitor]:
    """A visitor with every right."""
    visitor = Visitor(deck.console())
    yield visitor
    await visitor.close()


# ---------------------------------------------------------------- a real browser before a served console


@pytest.fixture(scope="module")  # no longer: while Playwright drives it, this thread can run no other event loop
def chromium() -> Iterator[Any]:
    """The browser; needs Chromium, and Playwright and axe for Python (the extra ``browser``)."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    missing = [name for name in ("playwright", "axe_playwright_python") if importlib.util.find_spec(name) is None]
    if path is None or missing:
        lacking = ", ".join(["Chromium"] * (path is None) + missing)
        unfetched(f"no browser: install {lacking} (make chromium, pip install '.[browser]')")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Site:
    """Processes that serve a console before a store.

    Attributes:
        audit: the file that their audit is appended to.
    """

    def __init__(self, deck: Deck, audit: Path) -> None:
        self.audit = audit
        self._url = deck.url
        self._served: list[subprocess.Popen[str]] = []

    def __call__(self, *rights: str) -> str:
        """Serve with these rights; returns the address."""
        allowed = [part for right in rights for part in ("--allow", right)]
        options = ["--store", self._url, "--port", "0", "--audit", str(self.audit), *allowed]
        return self._address("retrysafe", "console", *options)[0]

    def gated(self, *rights: str) -> tuple[str, subprocess.Popen[str]]:
        """Serve so that each batch of an operation waits for a line; returns the address and the process."""
        return self._address("tests.console.gated", self._url, *rights)

    def _address(self, *arguments: str) -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, "-m", *arguments]
        path = os.pathsep.join([surroundings()["PYTHONPATH"], str(Path(__file__).parents[2])])
        environment = {**surroundings(), "PYTHONPATH": path}
        pipe = subprocess.PIPE
        made = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self._served.append(made)
        assert made.stdout is not None
        return made.stdout.readline().split()[1].rstrip("/"), made

    def audited(self) -> list[dict[str, Any]]:
        """The entries of the audit."""
        return [json.loads(line) for line in self.audit.read_text(encoding="utf-8").splitlines()]

    def close(self) -> None:
        """Stop the processes."""
        for one in self._served:
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.close()
            one.terminate()
            one.wait(30)
            one.stdout.close()


@pytest.fixture
def site(shelf: Deck, tmp_path: Path) -> Iterator[Site]:
    """Serves the shelf."""
    made = Site(shelf, tmp_path / "audit.jsonl")
    yield made
    made.close()


@pytest.fixture(params=[1400, 390], ids=["wide", "narrow"])
def keyboard(request: pytest.FixtureRequest, chromium: Any) -> Iterator[Keyboard]:
    """A tab that is used by the keyboard, as wide as on a desk and on a telephone."""
    opened = chromium.new_page(viewport={"width": request.param, "height": 900})
    opened.set_default_timeout(15_000)
    yield Keyboard(opened, request.node.originalname.removeprefix("test_"))
    opened.close()
