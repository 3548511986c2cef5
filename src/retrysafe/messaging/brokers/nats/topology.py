"""The streams that keep the messages of topics."""

from __future__ import annotations

from collections.abc import Iterable

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.nats.connecting import connect
from retrysafe.messaging.brokers.nats.messages import subject_of
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.ordering import partitions_of
from retrysafe.protocol.records import Duration


async def declare(
    url: str,
    topics: str | Iterable[str],
    *,
    stream: str,
    prefix: str = "",
    partitions: int | None = None,
    keep: Duration | None = "7d",
    remember: Duration = "2m",
    length: int | None = None,
    replicas: int = 1,
    credentials: str | None = None,
    within: Duration = "10s",
) -> None:
    """Declare the stream that keeps the messages of topics, for every group of consumers; more topics are added to it.

    It keeps them in files. When it is full it refuses new messages, which then wait in the outbox, instead of removing
    old ones.

    Arguments:
        url: of the server, or of several of a cluster, separated by commas.
        topics: one or more.
        stream: the name of the stream that keeps the topics; letters, digits, "-" and "_".
        prefix: of the subjects, as publishers and consumers are told.
        partitions: over how many subjects each topic is spread, as publishers and consumers are told.
        keep: how long a message is kept, handled or not. An inbox must remember what it handled for longer; None: for
            ever.
        remember: for how long the stream recognises a message that is published again.
        length: how many messages it keeps at most; by default as many as there is room for.
        replicas: on how many servers of a cluster each message is.
        credentials: a file of NATS credentials (.creds).
        within: how long the server may take; after that `TimeoutError` is raised.

    Raises `ConfigurationError` when the server refuses the stream: its name or a subject belongs to another one, or it
    has fewer servers than replicas.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    try:
        subjects = {subject_of(prefix, place) for topic in names for place in partitions_of(topic, partitions)}
    except ValueError as error:
        raise ConfigurationError(f"topics= or prefix=: {error}.") from error
    wanted = StreamConfig(
        name=stream,
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW,
        storage=StorageType.FILE,
        max_age=0 if keep is None else seconds_of(keep, "keep"),
        max_msgs=-1 if length is None else length,
        duplicate_window=seconds_of(remember, "remember"),
        num_replicas=replicas,
    )
    patience = seconds_of(within, "within")
    connection = await connect(url, credentials, patience)
    try:
        streams = connection.client.jetstream(timeout=patience)
        try:
            subjects |= set((await streams.stream_info(stream)).config.subjects or ())
        except NotFoundError:
            await streams.add_stream(wanted, subjects=sorted(subjects))
        else:
            await streams.update_stream(wanted, subjects=sorted(subjects))
    except BadRequestError as error:
        raise ConfigurationError(f"NATS refuses the stream {stream!r}: {error.description}.") from error
    finally:
        await connection.close()
