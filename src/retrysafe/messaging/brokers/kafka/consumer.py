"""Kafka: one consumer of a group has a partition at a time, and commits the offset of its first unsettled message.

A thread of its own polls the client, so that slow handlers do not stop the polling: a consumer that does not poll for
five minutes loses its partitions. Partitions with enough messages in memory are paused. Only that thread calls the
client, because the client blocks other threads while it polls.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from operator import methodcaller
from typing import NamedTuple, cast

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.consumer import AssignedConsumer, ConsumerSession, names_of
from retrysafe.messaging.brokers.kafka.batches import Place
from retrysafe.messaging.brokers.kafka.messages import envelope_from
from retrysafe.messaging.brokers.kafka.progress import OffsetCommit, Progress
from retrysafe.messaging.brokers.kafka.properties import (
    LOG,
    Properties,
    properties_of,
    properties_of_member,
    require_known,
)
from retrysafe.messaging.brokers.kafka.publisher import AsyncKafkaPublisher
from retrysafe.messaging.brokers.kafka.topics import admin, declare, ends, retention_of
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration

_DEFAULTS: Properties = {
    "queued.min.messages": 1000,
    "queued.max.messages.kbytes": 16 << 10,
    "fetch.wait.max.ms": 100,
    "socket.timeout.ms": 10_000,
}
_LOOK, _BRIEF = 0.1, 0.01
"""Seconds for which a poll waits for a message: briefly while there is something to settle or to commit."""
_AGAIN = 0.2
"""Seconds after which a commit that failed is tried again."""
_AHEAD = 10_000
"""The number of messages received beyond a partition's first unsettled one: the next owner may get all again."""
_WITHIN = 5.0
"""Seconds for which the brokers' answer is waited for."""
_REFUSED = (
    KafkaError.OFFSET_METADATA_TOO_LARGE,
    KafkaError.INVALID_COMMIT_OFFSET_SIZE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)
"""Why a broker takes no commit, until a person mends it."""
_NAME = "retrysafe.consumer"


class _Assigned:
    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.withheld: list[Delivery] = []
        """Received messages that may not be handed out before a commit."""
        self.withheld_bytes = 0
        self.is_paused = False
        self.end = -1
        """Behind what was received, and the markers that followed it, when nothing else was there."""


class RecordTag(NamedTuple):
    """A message, in one assignment of its partition: after a new one, this consumer cannot settle it any more."""

    held: _Assigned
    offset: int


class _Committing(NamedTuple):
    """A commit in progress, and the callers that wait for its end."""

    owed: Mapping[Place, _Assigned]
    commits: Mapping[Place, OffsetCommit]
    asked: Sequence[Future[None]]


class KafkaConsumer(AssignedConsumer["_KafkaSession"]):
    """Receives messages from topics, for a group. Consumers of a group share the partitions.

    A message that is given back stays with this consumer: after its delay, the consumer hands out this message and
    those that follow it with its key. Messages with other keys do not wait for it. The committed offset is that of the
    first unsettled message; the metadata of the commit name the settled messages after it, so that they are not handed
    out again. When a partition is to move to another consumer, this one keeps it until the messages that it handed out
    are settled, or until ``leave_within`` has passed; messages that are settled later are not committed. A new group
    begins with the oldest message. ``aclose`` waits 10 s at most for brokers that do not answer. ``lag`` counts markers
    of transactions between messages as messages.

    Arguments:
        url: URL of the brokers, in the form that `KafkaPublisher` takes.
        topics: one or more topics, without the prefix.
        group: name of the group, such as "inventory": its consumers together receive each message once.
        prefix: prefix of the topics' names; the publishers need the same.
        prefetch: how many unsettled messages of a partition are in memory at most. Those that wait for a retry count
            a tenth: when the limit is reached, the partition is paused.
        prefetch_bytes: how many bytes of unsettled messages of a partition are in memory at most.
        session: how long a dead consumer keeps its partitions; as ``session.timeout.ms`` brokers accept 6 s or more,
            unless they are configured otherwise.
        leave_within: how long a partition that moves is kept for messages in progress; then another consumer has it,
            although some that were handed out are not settled.
        redelivery_window: for how long after its publication a message may be handed out again; by default the
            retention of the topics, which the consumer reads from the brokers: 14 days with the default settings of
            Kafka.
        properties: further properties of librdkafka.
        observers: receive an event when messages were removed from a topic before this group had settled them; by
            default a `LoggingObserver`.
    """

    def __init__(
        self,
        url: str,
        topics: str | Iterable[str],
        *,
        group: str,
        prefix: str = "",
        prefetch: int = 1000,
        prefetch_bytes: int = 16 << 20,
        session: Duration = "15s",
        leave_within: Duration = "5s",
        redelivery_window: Duration | None = None,
        properties: Properties | None = None,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        names = names_of(topics, prefetch, prefetch_bytes, group)
        ours = {**properties_of_member(group, session), "enable.partition.eof": True}  # which tells of their markers
        consuming = properties_of(url, ours, {**_DEFAULTS, **(properties or {})})
        require_known(confluent_kafka.Consumer, consuming)
        self._asking = properties_of(url, {}, properties)
        self._topics = {f"{prefix}{name}": name for name in names}
        leave, limits = seconds_of(leave_within, "leave_within"), (prefetch, prefetch_bytes)
        watching = Observers((LoggingObserver(),) if observers is None else observers)
        super().__init__(
            lambda: _KafkaSession(consuming, self._asking, self._topics, group, limits, leave, watching),
            redelivery_window,
        )

    @property
    def redelivery_window(self) -> float | None:
        """For how many seconds after its publication a message may be handed out again; None: unknown.

        Unless it was given as an argument, it is read from the brokers, which takes at most 10 s.
        """
        if self._declared is None:
            with suppress(KafkaException):
                self._declared = retention_of(self._asking, self._topics)
        return self._declared


class _KafkaSession(ConsumerSession):
    """A client, and the thread that polls it."""

    _thread: threading.Thread | None = None

    def __init__(
        self,
        properties: Properties,
        asking: Properties,
        topics: Mapping[str, str],
        group: str,
        limits: tuple[int, int],
        leave_within: float,
        observers: Observers,
    ) -> None:
        super().__init__(*limits)
        self._properties, self._asking, self._topics, self._group = properties, asking, topics, group
        self._leave_within, self._observers = leave_within, observers
        self._turn = threading.Condition()
        self._held: dict[Place, _Assigned] = {}
        self._asked: list[Future[None]] = []
        """Callers that wait for the commit of everything that was settled before they asked."""
        self._committing: _Committing | None = None
        self._not_before = 0.0
        self._admin: AdminClient | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        told = {"error_cb": self._on_error, "on_commit": self._on_commit}
        client = confluent_kafka.Consumer({**self._properties, **told}, logger=LOG)
        client.subscribe([*self._topics], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        name = "retrysafe-kafka-consumer"
        self._thread = threading.Thread(target=self._run, args=(client,), name=name, daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """True while the client is polled, or has ended with an error that is still to be raised."""
        return self._failure is not None or (self._thread is not None and self._thread.is_alive())

    def take(self, limit: int, now: float) -> Sequence[Delivery]:
        with self._turn:
            return super().take(limit, now)

    async def look(self) -> bool:
        with self._turn:  # `super().look()` awaits nothing
            return await super().look()

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        with self._turn:
            for delivery in deliveries:
                if self._lanes.settle(delivery):
                    delivery.tag.held.progress.settle(delivery.tag.offset)
            self._turn.notify_all()
            if self._thread is None:
                return
            committed: Future[None] = Future()
            committed.set_running_or_notify_cancel()
            self._asked.append(committed)
        with suppress(TimeoutError):
            async with asyncio.timeout(_WITHIN):
                await asyncio.wrap_future(committed)

    def give_back(self, delivery: Delivery, until: float) -> None:
        with self._turn:
            super().give_back(delivery, until)

    def make_room(self, retried: Mapping[str, int]) -> Collection[str]:
        with self._turn:
            self._lanes.retried = dict(retried)
            places = {f"{topic}-{number}": (topic, number) for topic, number in self._held}
            return self._lanes.crowds(lambda one: one not in places or self._has_space(places[one], 1.0))

    @property
    def assigned(self) -> Collection[str]:
        with self._turn:
            return [f"{topic}-{number}" for topic, number in self._held]

    async def lag(self) -> Mapping[str, int]:
        """Count unsettled messages and markers of transactions in the partitions of this consumer."""
        with self._turn:
            held = {place: one.progress for place, one in self._held.items() if one.progress.low >= 0}
            before = {place: progress.low + progress.settled for place, progress in held.items()}
            for place in held:
                if not self._lanes.count(f"{place[0]}-{place[1]}") and not self._held[place].withheld:
                    before[place] = max(before[place], self._held[place].end)
        if not before:
            return {}
        if self._admin is None:
            self._admin = admin(self._asking)
        found = await asyncio.to_thread(ends, self._admin, before)
        return {f"{topic}-{number}": max(0, found[topic, number] - low) for (topic, number), low in before.items()}

    async def close(self) -> None:
        """Leave the group; the next consumer of the partitions gets the unsettled messages.

        Brokers that do not answer are waited for for 10 s. The client goes on trying to leave then, in its thread.
        """
        with self._turn:
            self._closing.set()
            self._turn.notify_all()
        thread, self._thread, self._admin = self._thread, None, None
        if thread is not None:
            await asyncio.to_thread(thread.join, 2 * _WITHIN)
        with self._turn:
            self._held.clear()
            self._end_commit()
            self._lanes.clear()

    # ------------------------------------------------------------ the thread that polls

    def _run(self, client: confluent_kafka.Consumer) -> None:
        failure: BaseException | None = None
        try:
            self._poll(client)
        except BaseException as error:  # noqa: BLE001 - raised by `receive`
            failure = error
        with suppress(KafkaException):
            client.close()
        with self._turn:
            self._failure = failure
            self._held.clear()
            self._lanes.clear()
            self._end_commit()
        self._wake()

    def _poll(self, client: confluent_kafka.Consumer) -> None:
        while not self._is_ending():
            message = client.poll(_BRIEF if self._is_busy() else _LOOK)
            if message is not None:
                while message is not None:
                    self._took(client, message)
                    message = client.poll(0)
                self._wake()
            self._pause_full(client)
            self._commit(client)
        self._commit_last(client)

    def _is_ending(self) -> bool:
        """Tell whether to leave the group: also when the event loop was closed, as no messages are handled."""
        return self._closing.is_set() or self._loop.is_closed()

    def _is_busy(self) -> bool:
        with self._turn:
            return any(held.progress.ahead for held in self._held.values()) or bool(self._asked)

    def _took(self, client: confluent_kafka.Consumer, message: confluent_kafka.Message) -> None:
        """Keep a received message, or the error that was received instead of one."""
        error = message.error()
        topic, number, offset = message.topic(), message.partition(), message.offset()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET and topic is not None and number is not None:
                self._begin_anew(client, (topic, number), error)
            elif error.code() == KafkaError._PARTITION_EOF:
                with self._turn:
                    if (reached := self._held.get((topic or "", number or 0))) is not None and offset is not None:
                        reached.end = offset
            else:
                self._on_error(error)
            return
        assert topic is not None
        assert number is not None
        assert offset is not None
        with self._turn:
            held = self._held.get((topic, number))
            if held is None or not held.progress.receive(offset):
                return
            envelope = envelope_from(_headers(message), message.key(), message.value(), self._topics[topic])
            delivery = Delivery(envelope, RecordTag(held, offset), f"{topic}-{number}", held.progress.is_again(offset))
            if offset < held.progress.granted:
                self._lanes.put(delivery)
            else:
                held.withheld.append(delivery)
                held.withheld_bytes += envelope.size
            has_room = self._has_space((topic, number), 1.0)
        if not has_room:
            self._pause_full(client)

    def _begin_anew(self, client: confluent_kafka.Consumer, place: Place, error: KafkaError) -> None:
        """Go on with the oldest message of a partition that does not have the offset that was reached any more.

        Before it: messages were removed unsettled. Behind it: the partition has lost its end, or is of a topic that was
        made again. What it has now may not have been handled.
        """
        oldest, end = client.get_watermark_offsets(TopicPartition(*place), timeout=_WITHIN)
        with self._turn:
            held = self._held.get(place)
            if held is None:
                return
            missed = max(0, oldest - held.progress.low)
            if is_another := held.progress.next > end:
                self._held[place] = _Assigned(Progress(oldest, None, self._prefetch))
                self._lanes.forget(f"{place[0]}-{place[1]}")
        if is_another:
            self._on_error(error)
        elif missed:
            fields = {"stream": f"{place[0]}-{place[1]}", "group": self._group, "messages": missed}
            self._observers.emit("messages_trimmed", _NAME, "", b"", "", fields)
        client.incremental_unassign([TopicPartition(*place)])  # a partition that has failed cannot be sought
        _assign(client, [TopicPartition(*place, oldest)])

    def _pause_full(self, client: confluent_kafka.Consumer) -> None:
        """Pause partitions whose memory is full, and resume those that use less than half of it again."""
        moved: dict[bool, list[TopicPartition]] = {True: [], False: []}
        with self._turn:
            for place, held in self._held.items():
                if held.is_paused == self._has_space(place, 0.5 if held.is_paused else 1.0):
                    held.is_paused = not held.is_paused
                    moved[held.is_paused].append(TopicPartition(*place, held.progress.next))
        if moved[True]:
            client.pause(moved[True])
        if moved[False]:
            client.resume(moved[False])
        for one in moved[False]:
            with suppress(KafkaException):  # it is fetched all the same, later
                client.seek(one)  # to where it is: this wakes the client, which may not look at it for a second

    def _has_space(self, place: Place, share: float) -> bool:
        held, partition = self._held[place], f"{place[0]}-{place[1]}"
        return (
            self._lanes.load(partition) + len(held.withheld) < self._prefetch * share
            and self._lanes.count_bytes(partition) + held.withheld_bytes < self._bytes * share
            and held.progress.ahead < _AHEAD
        )

    def _on_error(self, error: KafkaError) -> None:
        """Let the next `receive` raise the error; the client recovers from an error of one connection by itself."""
        if error.fatal():
            raise KafkaException(error)  # ends the poll: this client delivers nothing any more
        if error.code() not in (KafkaError._TRANSPORT, KafkaError._MAX_POLL_EXCEEDED):
            with self._turn:
                if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    self._failure, self.is_failing = QueueMissing(f"{error.str()}: declare it:  {declaring()}"), True
                elif self._failure is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # its cause was told before
                    servers = self._properties["bootstrap.servers"]
                    self._failure = KafkaException(KafkaError(error.code(), f"{error.str()} ({servers})"))
            self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop may be closed by now
            self._loop.call_soon_threadsafe(self._arrived.set)

    # ------------------------------------------------------------ partitions that come and go

    def _on_assign(self, client: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        self.is_failing = False
        begun = client.committed(partitions, timeout=_WITHIN) if partitions else []
        for one in begun:
            if one.error is not None:
                raise KafkaException(one.error)
        with self._turn:
            for one in begun:
                progress = Progress(max(-1, one.offset), one.metadata, self._prefetch)
                self._held[one.topic, one.partition] = _Assigned(progress)
        _assign(
            client,
            [
                TopicPartition(one.topic, one.partition, one.offset if one.offset >= 0 else OFFSET_BEGINNING)
                for one in begun
            ],
        )

    def _on_revoke(self, client: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        self._leave(client, [place for one in partitions if (place := (one.topic, one.partition)) in self._held])
        self._on_lost(client, partitions)

    def _on_lost(self, client: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        """Forget lost partitions: other consumers may have them already, so nothing of them is committed any more."""
        with self._turn:
            for one in partitions:
                self._held.pop((one.topic, one.partition), None)
                self._lanes.forget(f"{one.topic}-{one.partition}")
        client.incremental_unassign(partitions)

    def _is_owed(self, place: Place, held: _Assigned) -> bool:
        """Tell whether a commit is due: messages were settled or wait for a commit, or the partition is being left."""
        progress = held.progress
        return progress.is_owed or bool(held.withheld) or (self._is_leaving(place) and progress.low >= 0)

    def _is_leaving(self, place: Place) -> bool:
        return f"{place[0]}-{place[1]}" in self._leaving

    def _leave(self, client: confluent_kafka.Consumer, places: Sequence[Place]) -> None:
        """Wait up to ``leave_within`` until the messages that were handed out are settled, and commit."""
        if self._is_ending():
            return
        with self._turn:
            self._leaving = {f"{topic}-{number}" for topic, number in places}
            self._turn.wait_for(self._is_left, self._leave_within)
            held = [(place, self._held[place].progress) for place in places]
            commits = {place: one.commit(leaving=True) for place, one in held if one.low >= 0}
            self._leaving = set()
        if commits:
            with suppress(KafkaException):  # uncommitted messages are handed out again
                client.commit(offsets=_offsets(commits), asynchronous=False)

    def _is_left(self) -> bool:
        return self._is_ending() or not any(self._lanes.out(partition) for partition in self._leaving)

    # ------------------------------------------------------------ commits

    def _commit(self, client: confluent_kafka.Consumer) -> None:
        """Begin a commit of the settled messages and of how far messages may be handed out; one commit at a time."""
        with self._turn:
            if self._committing is not None or time.monotonic() < self._not_before:
                return
            owed = {place: held for place, held in self._held.items() if self._is_owed(place, held)}
            commits = {place: one.progress.commit(leaving=self._is_leaving(place)) for place, one in owed.items()}
            asked, self._asked = self._asked, []
            self._committing = _Committing(owed, commits, asked)
            if not owed:
                self._end_commit()
                return
        client.commit(offsets=_offsets(self._committing.commits), asynchronous=True)

    def _commit_last(self, client: confluent_kafka.Consumer) -> None:
        deadline = time.monotonic() + _WITHIN
        with self._turn:
            self._leaving = {f"{topic}-{number}" for topic, number in self._held}
        while self._committing is not None and time.monotonic() < deadline:
            client.poll(_BRIEF)
        self._commit(client)
        while self._committing is not None and time.monotonic() < deadline:
            client.poll(_BRIEF)
        self._leaving = set()

    def _on_commit(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """Hand out the messages that waited for the commit, which has ended."""
        with self._turn:
            if self._committing is None:
                return
            failed = {(one.topic, one.partition): one.error for one in places if one.error is not None}
            for place, commit in self._committing.commits.items():
                held = self._committing.owed[place]
                if (why := failed.get(place, error)) is not None:
                    held.progress.is_owed = True
                    self._not_before = time.monotonic() + _AGAIN
                    is_too_long = why.code() == KafkaError.OFFSET_METADATA_TOO_LARGE
                    if why.code() in _REFUSED and not (is_too_long and held.progress.shorten()):
                        self._failure = KafkaException(why)
                elif self._held.get(place) is held:
                    held.progress.grant(commit)
                    self._hand_out(held)
            self._end_commit()
        self._wake()

    def _end_commit(self) -> None:
        """Wake the callers that wait for the commit; uncommitted messages are delivered again."""
        committing, self._committing = self._committing, None
        for one in committing.asked if committing is not None else ():
            one.set_result(None)
        if not self._held:
            for one in self._asked:
                one.set_result(None)
            self._asked = []

    def _hand_out(self, held: _Assigned) -> None:
        """Queue the messages that waited for a commit, as far as they may be handed out now."""
        for delivery in held.withheld:
            if delivery.tag.offset < held.progress.granted:
                self._lanes.put(delivery)
        held.withheld = [one for one in held.withheld if one.tag.offset >= held.progress.granted]
        held.withheld_bytes = sum(one.envelope.size for one in held.withheld)


_read_headers = methodcaller("headers")
"""Python sees to it that a failure of this call is raised; of one that is written out, not where it has become hot."""


def _headers(message: confluent_kafka.Message) -> list[tuple[str, bytes | None]]:
    """The headers of a record; none if the name of one is not UTF-8. Without headers the record is no event.

    The client fails at such a name, and leaves nothing in its place, not even None: to look there ends the process.
    """
    try:
        return cast("list[tuple[str, bytes | None]]", _read_headers(message) or [])
    except (SystemError, UnicodeError):
        return []


def _assign(client: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
    """Take partitions, none of them paused: librdkafka keeps a pause over the end of an assignment."""
    client.incremental_assign(partitions)
    if partitions:
        client.resume(partitions)


def _offsets(commits: Mapping[Place, OffsetCommit]) -> list[TopicPartition]:
    return [TopicPartition(*place, commit.offset, commit.text) for place, commit in commits.items()]


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """Topics whose names begin with our name; so do the groups', which make themselves."""
    prefix = f"{name}."
    return Broker(
        lambda topics, _: asyncio.to_thread(declare, url, topics, prefix=prefix, partitions=partitions),
        lambda: AsyncKafkaPublisher(url, prefix=prefix),
        lambda topic, group: KafkaConsumer(url, topic, group=f"{prefix}{group}", prefix=prefix, session=lease),
    )
