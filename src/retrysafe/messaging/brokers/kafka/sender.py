"""A producer of librdkafka, and the thread that hands out what it reports of each record.

`Producer.produce` puts a record into a queue of the client; what became of it is told later, to the thread that polls.
Records that do not fit into that queue wait here, in their order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from retrysafe.messaging.brokers.kafka.messages import KafkaRecord
from retrysafe.messaging.brokers.kafka.properties import LOG

Reports = list[KafkaError | None]
"""A producer's reports of each record; None: it was acknowledged."""
_LOOK = 0.1
"""Seconds after which the thread looks whether records in waiting have waited too long."""
_UNTOLD = KafkaError(KafkaError._PURGE_INFLIGHT)
"""The report of a record that will get none any more: it may be in its topic."""

_CAUSES = (KafkaError._AUTHENTICATION, KafkaError._RESOLVE, KafkaError._SSL)
"""Why a client cannot reach any broker, until a person mends it."""


class _Waiting(NamedTuple):
    """A record that is to be produced by then, and where its report goes."""

    record: KafkaRecord
    wave: Wave
    at: int
    until: float


class Wave:
    """Records that are sent together, and their reports."""

    def __init__(self, records: int) -> None:
        self.reports: Future[Reports] = Future()
        self.reports.set_running_or_notify_cancel()  # its waiter may be cancelled, and the records go on
        self._found: Reports = [_UNTOLD] * records
        self._missing = records

    def report(self, at: int, error: KafkaError | None) -> None:
        """One record's report has come. Called by one thread at a time; after `abandon` it is not heard."""
        if self._missing:
            self._found[at] = error
            self._missing -= 1
            if not self._missing:
                self.reports.set_result(self._found)

    def abandon(self) -> None:
        if self._missing:
            self._missing = 0
            self.reports.set_result(self._found)


class RecordSender:
    """Sends records. Threads may share it; a forked process makes its own.

    Arguments:
        properties: of the producer.
        patience: seconds that a record may wait for room in the producer's queue.
    """

    def __init__(self, properties: Mapping[str, Any], patience: float) -> None:
        self.failure: KafkaError | None = None
        """Why this producer is of no use any more."""
        self.is_away = False
        """True if no broker could be reached since a record was last acknowledged."""
        self.cause: KafkaError | None = None
        """The cause of the lost connection to the brokers, where the client can tell."""
        self._producer = Producer({**properties, "error_cb": self._on_error}, logger=LOG)
        self._patience = patience
        self._waiting: deque[_Waiting] = deque()
        self._waves: set[Wave] = set()
        self._turn = threading.RLock()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="retrysafe-kafka-publisher", daemon=True)
        self._thread.start()

    def send(self, records: Sequence[KafkaRecord]) -> Future[Reports]:
        """Send them in this order, behind all that were sent before; never blocks."""
        wave = Wave(len(records))
        until = time.monotonic() + self._patience
        with self._turn:
            if self._closing:
                for at in range(len(records)):
                    wave.report(at, KafkaError(KafkaError._PURGE_QUEUE))
                return wave.reports
            self._waiting += [_Waiting(record, wave, at, until) for at, record in enumerate(records)]
            self._waves.add(wave)
            self._produce()
        return wave.reports

    def close(self) -> None:
        """Give up what is under way, and hang up."""
        with self._turn:
            self._closing = True
            self._producer.purge(in_queue=True, in_flight=True)
        self._thread.join()
        del self._producer  # without `close`, which fails after a fatal error

    def _serve(self) -> None:
        try:
            while not self._closing:
                self._hear(self._producer.poll, _LOOK)
                with self._turn:
                    self._waves = {wave for wave in self._waves if not wave.reports.done()}
                    self._produce()
            self._hear(self._producer.flush, 1.0)
        finally:
            with self._turn:
                if not self._closing:
                    self.failure = self.failure or KafkaError(KafkaError._FAIL)
                self._closing = True
                self._give_up()

    def _hear(self, tell: Callable[[float], object], seconds: float) -> None:
        """Let the client tell what it has to; of an error that ends it, it tells by raising that."""
        try:
            tell(seconds)
        except KafkaException as error:
            self._on_error(error.args[0])

    def _give_up(self) -> None:
        """Report what waits, and what nothing will be told of: nothing is sent any more."""
        while self._waiting:
            one = self._waiting.popleft()
            one.wave.report(one.at, KafkaError(KafkaError._PURGE_QUEUE))
        while self._waves:
            self._waves.pop().abandon()

    def _produce(self) -> None:
        """Move what is waiting into the producer's queue, as far as there is room."""
        while self._waiting and not self._closing:
            one = self._waiting[0]
            if time.monotonic() > one.until:
                self._on_report(one, KafkaError(KafkaError._QUEUE_FULL))
            else:
                topic, key, value, headers = one.record
                try:
                    self._producer.produce(
                        topic, value, key, headers=headers, on_delivery=partial(self._on_report, one)
                    )
                except BufferError:
                    if len(self._producer):
                        return
                    self._on_report(one, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "larger than the client's queue"))
                except KafkaException as error:
                    ended = error.args[0].code() == KafkaError._FATAL
                    self._on_report(one, KafkaError(KafkaError._PURGE_QUEUE) if ended else error.args[0])
            self._waiting.popleft()

    def _on_report(self, one: _Waiting, error: KafkaError | None, _: object = None) -> None:
        if error is None:
            self.is_away, self.cause = False, None
        elif error.fatal():
            self._on_error(error)
        with self._turn:
            one.wave.report(one.at, error)

    def _on_error(self, error: KafkaError) -> None:
        """The client tells of a failure that is no record's."""
        self.is_away = self.is_away or error.code() == KafkaError._ALL_BROKERS_DOWN
        if error.code() in _CAUSES:
            self.cause = error
        if error.fatal() or error.code() == KafkaError._FATAL:
            self.failure = self.failure or error
