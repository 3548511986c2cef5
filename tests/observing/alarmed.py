"""A process whose metrics are scraped each minute, of minutes that pass when a test says so, and what promtool says."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import prometheus_client
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from retrysafe import Boundary
from retrysafe.messaging import Inbox, Message, Outbox, Relay
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from retrysafe.messaging.relay.operator import OutboxOperator
from retrysafe.observability.alerts import rules
from retrysafe.observability.otel import OpenTelemetryObserver
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.webhooks import Receiver, StandardWebhooks
from retrysafe.webhooks.standard import keys_of, signatures
from tests.conftest import require
from tests.faults.helpers import own_database

USUAL = 16
"""Minutes of usual work before a fault: a condition that looks 15 minutes back has seen what was there before."""
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def envelope(number: int, payload: bytes = b"1") -> Envelope:
    """A message of a broker."""
    return Envelope(f"m-{number}", "orders", "o-1", "placed.v1", "/shop", None, {}, payload, "application/json")


class Says:
    """A publisher that says the same of each message."""

    by_topic = False

    def __init__(self, status: PublishStatus) -> None:
        self._status = status

    def destination(self, envelope: Envelope, /) -> str:
        return envelope.topic

    def publish(self, envelopes: Sequence[Envelope], /) -> list[PublishResult]:
        return [PublishResult(self._status, "no")] * len(envelopes)

    def close(self) -> None:
        pass


class Scraped(NamedTuple):
    """One series, and its value at each minute from the first one."""

    first: int
    values: list[float]


class Process:
    """A process that guards work, publishes and consumes over a SQLite file, with the metrics that it exposes."""

    def __init__(self, folder: Path) -> None:
        before = {*prometheus_client.REGISTRY._collector_to_names}
        self.meters = MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False)
        (self._collector,) = {*prometheus_client.REGISTRY._collector_to_names} - before
        self.observer = OpenTelemetryObserver(self.meters, TracerProvider(shutdown_on_exit=False))
        self.folder = folder
        self.file = folder / "shop.db"
        self.url = f"sqlite:///{self.file}?synchronous=NORMAL"  # no fsync for each of a thousand commits
        self.minutes = 0
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], Scraped] = {}
        self._boundaries: list[Boundary] = []
        self._stack = ExitStack()
        self._works = self.boundary("works")
        self.work("first")
        self.outbox = Outbox(self.url, source="/shop", observers=[self.observer])
        self.inbox = Inbox(self.boundary("stock", effects="transactional", window="7d"))
        self._receiver = Receiver(self.boundary("billing", window="7d"), StandardWebhooks(SECRET))
        self._receiver.otherwise(lambda event: None)
        self._handled = self.inbox.handler("stock")(lambda message: None)

    # ------------------------------------------------------------ what it does

    def boundary(self, name: str, store: Any = None, *others: Observer, **settings: Any) -> Boundary:
        """A boundary, observed."""
        made = Boundary(name, store=store or self.url, observers=[self.observer, *others], **settings)
        self._boundaries.append(made)
        return made

    def work(self, key: str, boundary: Boundary | None = None, payload: Any = None) -> None:
        """Guarded work."""
        with (boundary or self._works).claim(key, payload=payload) as claim:
            if not claim.replayed:
                claim.result = 1

    def consumes(self, observer: Observer) -> Inbox:
        """An inbox that another observer watches too."""
        return Inbox(self.boundary("mailing", None, observer, effects="transactional", window="7d"))

    def write(self, *topics: str) -> None:
        """Write a message of each topic into the outbox."""
        with closing(sqlite3.connect(self.file)) as db, db:
            self.outbox.add_many(db, [Message(topic, 1, "key") for topic in topics])

    def relay(self, publisher: Any, **settings: Any) -> None:
        """Publish what is due."""
        Relay(self.url, publisher, observers=[self.observer], **settings).run_once()

    def report(self) -> None:
        """Tell how the outbox stands, as a relay does every ten seconds."""
        with OutboxOperator(self.url, observers=[self.observer]) as operator:
            operator.report()

    def receive(self, identity: str, secret: str = SECRET) -> int:
        """Receive a webhook that was signed with this secret; returns the status of its answer."""
        body, now = b'{"type": "invoice.paid", "data": {}}', str(int(time.time()))
        (signature,) = signatures(keys_of(secret), identity, now, body)
        headers = {"webhook-id": identity, "webhook-timestamp": now, "webhook-signature": f"v1,{signature}"}
        return self._receiver.receive({**headers, "Content-Type": "application/json"}, body).status

    def postgresql(self) -> str:
        """The URL of an empty database of a server."""
        require("postgresql")
        return self._stack.enter_context(own_database(os.environ["RETRYSAFE_TEST_POSTGRESQL"]))

    def sql(self, statement: str) -> None:
        """Change the database as the fault does."""
        with closing(sqlite3.connect(self.file, timeout=60)) as db, db:
            db.execute(statement)

    # ------------------------------------------------------------ minutes

    def minute(self) -> None:
        """A minute is over, and Prometheus scrapes."""
        for family in self._collector.collect():
            for sample in family.samples:
                name = sample.name, tuple(sample.labels.items())
                self._series.setdefault(name, Scraped(self.minutes, [])).values.append(sample.value)
        self.minutes += 1

    def usual(self, minutes: int) -> None:
        """Minutes of usual work: new keys, a few retries, and messages that leave, arrive and are handled."""
        for _ in range(minutes):
            now = self.minutes
            for number in (0, 1, 2, 0):
                self.work(f"{now}-{number}")
            self.write("orders")
            self.relay(MemoryPublisher())
            self.report()
            self._handled.handle(envelope(now))
            assert self.receive(f"msg_{now}") == 200
            self.minute()

    def repeat(self, minutes: int, act: Callable[[int], object]) -> None:
        """Minutes in which something happens."""
        for number in range(minutes):
            act(number)
            self.minute()

    # ------------------------------------------------------------ what Prometheus makes of it

    def firing(self, *at: int) -> list[set[str]]:
        """The alerts that fire at these minutes, by promtool on the scraped series."""
        series = [
            {
                "series": f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in (*labels, *TARGET))}}}",
                "values": " ".join([*["_"] * one.first, *map(repr, one.values)]),
            }
            for (name, labels), one in self._series.items()
            if name.startswith("retrysafe_")
        ]
        (self.folder / "rules.yml").write_text("\n".join(rules()), encoding="utf-8")
        asked = [{"expr": FIRING, "eval_time": f"{minute}m", "exp_samples": [NEVER]} for minute in at]
        test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
        whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
        (self.folder / "test.yml").write_text(json.dumps(whole), encoding="utf-8")
        command = [f"{os.environ['RETRYSAFE_TEST_PROMETHEUS']}/promtool", "test", "rules", "test.yml"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        return told(done.stdout + done.stderr, len(at))

    def close(self) -> None:
        """End its connections and its metrics."""
        for one in self._boundaries:
            one.close()
        self._stack.close()
        self.meters.shutdown()


TARGET = (("job", "app"), ("instance", "app:8000"))
"""The labels that Prometheus adds."""
FIRING = 'group by (alertname) (ALERTS{alertstate="firing"})'
_NAME = re.compile(r'alertname="(\w+)"')
NEVER = {"labels": '{alertname="never"}', "value": 1}
"""The alert that promtool expects and does not find, so that it prints those that it has found."""


def told(printed: str, answers: int) -> list[set[str]]:
    """The names of the alerts in each of promtool's answers."""
    found = [{*_NAME.findall(answer.partition("expr:")[0])} for answer in printed.split("got:")[1:]]
    assert len(found) == answers, printed
    return found
