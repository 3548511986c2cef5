"""Our tables as Django knows them, so that ``flush`` and TransactionTestCase empty them like any other.

The tables themselves are made by our own SQL, and only retrysafe writes them. The outbox's buckets are no model: they
are the same for ever, and without them nothing would be relayed.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from retrysafe.django.fields import KeyHash
from retrysafe.protocol import records
from retrysafe.protocol.records import Micros, State


class Record(models.Model):
    """One key's record. Look, don't write: the states change under conditions that the ORM does not know."""

    key_hash: Any = KeyHash(primary_key=True)
    boundary: Any = models.TextField()
    scope: Any = models.TextField()
    operation: Any = models.TextField()
    fingerprint: Any = models.BinaryField()
    state: Any = models.TextField()
    attempt: Any = models.TextField()
    token: Any = models.BigIntegerField()
    attempts: Any = models.IntegerField()
    effects: Any = models.TextField()
    lease_until: Any = models.BigIntegerField()
    created: Any = models.BigIntegerField()
    updated: Any = models.BigIntegerField()
    expires: Any = models.BigIntegerField()
    tombstone_until: Any = models.BigIntegerField()
    version: Any = models.BigIntegerField()
    result: Any = models.BinaryField(null=True)
    media_type: Any = models.TextField(null=True)
    codec_version: Any = models.IntegerField(null=True)
    quota: Any = models.BinaryField(null=True)

    class Meta:
        db_table = "retrysafe_records"
        default_permissions = ("view",)
        permissions = [  # noqa: RUF012 - so it is declared in Django
            ("resolve_record", "Can settle and release unknown keys"),
            ("expire_record", "Can end the window of settled keys"),
        ]

    def __str__(self) -> str:
        return f"{self.boundary}/{self.operation} {bytes(self.key_hash).hex()[:12]} {self.state}"

    def as_read(self, now: Micros) -> records.Record:
        """The record as the store would report it at this time, with no more of its result than its kind and note."""
        fields = {name: getattr(self, name) for name in records.Record._fields if name not in ("key", "result", "now")}
        given = {**fields, "state": State(self.state), "fingerprint": bytes(self.fingerprint)}
        kind = records.StoredResult(b"", self.media_type, 0) if self.media_type else None
        return records.Record(key=bytes(self.key_hash), result=kind, now=now, **given)


class _Message(models.Model):
    """The fields of every message."""

    bucket: Any = models.SmallIntegerField()
    lane: Any = models.BigIntegerField()
    message_id: Any = models.TextField()
    topic: Any = models.TextField()
    message_key: Any = models.TextField(null=True)
    message_type: Any = models.TextField()
    source: Any = models.TextField()
    sequence: Any = models.BigIntegerField(null=True)
    created: Any = models.BigIntegerField()
    headers: Any = models.TextField()
    payload: Any = models.BinaryField()
    media_type: Any = models.TextField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.topic} {self.message_id}"


class OutboxMessage(_Message):
    """A message that waits to leave. Add one with ``Outbox.add``."""

    id: Any = models.BigAutoField(primary_key=True)

    class Meta(_Message.Meta):
        db_table = "retrysafe_outbox"
        default_permissions = ("view",)


class OutboxDeadLetter(_Message):
    """A message that was given up. ``retrysafe outbox redrive`` lets it leave again."""

    id: Any = models.BigIntegerField(primary_key=True)
    started: Any = models.IntegerField()
    finished: Any = models.IntegerField()
    error: Any = models.TextField()
    dead_at: Any = models.BigIntegerField()

    class Meta(_Message.Meta):
        db_table = "retrysafe_outbox_dead"
        default_permissions = ("view",)


class OutboxPublished(_Message):
    """A message that has left, where relays keep them."""

    id: Any = models.BigIntegerField(primary_key=True)
    published: Any = models.BigIntegerField()

    class Meta(_Message.Meta):
        db_table = "retrysafe_outbox_published"
        default_permissions = ("view",)


class OutboxAttempt(models.Model):
    """The attempts of a message that did not leave at once."""

    id: Any = models.BigIntegerField(primary_key=True)
    bucket: Any = models.SmallIntegerField()
    lane: Any = models.BigIntegerField()
    started: Any = models.IntegerField()
    finished: Any = models.IntegerField()
    not_before: Any = models.BigIntegerField()
    error: Any = models.TextField()

    class Meta:
        db_table = "retrysafe_outbox_attempts"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.id}: {self.error}"


class OutboxPaused(models.Model):
    """A topic of which nothing leaves for the time being."""

    topic: Any = models.TextField(primary_key=True)
    paused_at: Any = models.BigIntegerField()

    class Meta:
        db_table = "retrysafe_outbox_paused"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.topic)


class OutboxRelay(models.Model):
    """A relay that says it is there."""

    name: Any = models.TextField(primary_key=True)
    hold: Any = models.TextField()
    started_at: Any = models.BigIntegerField()
    last_seen_at: Any = models.BigIntegerField()

    class Meta:
        db_table = "retrysafe_outbox_relays"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.name)


class InboxAttempt(models.Model):
    """The attempts at a message that could not be handled at once."""

    key_hash: Any = models.BinaryField(primary_key=True)
    consumer: Any = models.TextField()
    started: Any = models.IntegerField()
    finished: Any = models.IntegerField()
    error: Any = models.TextField()
    updated: Any = models.BigIntegerField()

    class Meta:
        db_table = "retrysafe_inbox_attempts"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.consumer}: {self.error}"


class InboxDeadLetter(models.Model):
    """A message that a consumer has given up. ``retrysafe inbox dead redrive`` has it handled again."""

    key_hash: Any = models.BinaryField(primary_key=True)
    record_key: Any = models.BinaryField()
    boundary: Any = models.TextField()
    consumer: Any = models.TextField()
    message_id: Any = models.TextField()
    topic: Any = models.TextField()
    message_key: Any = models.TextField(null=True)
    message_type: Any = models.TextField()
    source: Any = models.TextField()
    sequence: Any = models.BigIntegerField(null=True)
    headers: Any = models.TextField()
    payload: Any = models.BinaryField()
    media_type: Any = models.TextField()
    started: Any = models.IntegerField()
    finished: Any = models.IntegerField()
    error: Any = models.TextField()
    dead_at: Any = models.BigIntegerField()
    redrive: Any = models.BigIntegerField(null=True)

    class Meta:
        db_table = "retrysafe_inbox_dead"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.consumer} {self.message_id}"


class InboxSequence(models.Model):
    """The last sequence of an entity that a consumer has applied."""

    key_hash: Any = models.BinaryField(primary_key=True)
    boundary: Any = models.TextField()
    consumer: Any = models.TextField()
    entity: Any = models.TextField()
    sequence: Any = models.BigIntegerField()
    updated: Any = models.BigIntegerField()

    class Meta:
        db_table = "retrysafe_inbox_sequences"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.consumer} {self.entity}: {self.sequence}"
