"""The faults of a message, before anything has left."""

from __future__ import annotations

from retrysafe.errors import RetrysafeError


class MessageRefused(RetrysafeError):
    """The message cannot be sent as it is, so it was not written into the outbox.

    It will not be published, and your transaction is unchanged. Change the part that is named above, or pass the
    payload as bytes with their media type, and add the message again.
    """

    effect_happened = "no"
    retry_same_key = True
    safe_new_key = True


class BrokerUnavailable(RetrysafeError):
    """The broker cannot be reached, or accepts no messages at all, so the relay stopped for now.

    Unpublished messages stay in the outbox, and this spends no attempt. Some of them may have reached the broker;
    they are published again, with the same ids. Running relays try again by themselves; check the broker and its URL.
    """

    retry_same_key = True


class QueueMissing(BrokerUnavailable):
    """The broker answers, but does not have the queue to consume from, so that no message can arrive.

    Nothing was received. Declare the queue as named above, before the first message is published: a message for a queue
    that is missing waits in the outbox, or is lost where another group's queue takes it. Subscriptions look again by
    themselves.
    """


class MessageUnreadable(RetrysafeError):
    """The payload of the message does not match its media type, so it was not passed to the handler.

    The handler has not run. The message is in the dead letters. If the type is wrong and the payload is right, let the
    consumer read bytes with ``parse=`` and redrive the message; otherwise have it sent again as a new message.
    """

    effect_happened = "no"
    retry_same_key = True
    safe_new_key = True


class MessageDead(RetrysafeError):
    """The message is a dead letter, and its key is settled as failed.

    The handler's transactions were rolled back; its effects elsewhere may have happened, once for each attempt. Find
    the cause, then redrive the message: ``retrysafe inbox dead list``, ``retrysafe inbox dead redrive``.
    """


class SequenceGap(RetrysafeError):
    """The message is not the next one of its entity: an earlier one has not been applied.

    Let this exception leave the handler: its transaction is rolled back, and the message comes again after a pause. If
    the missing message does not come, or is a dead letter, this message becomes a dead letter, and the messages after
    it do so at once. Redrive the missing one, or skip it (``retrysafe inbox skip``), then redrive the others.

    Attributes:
        last: the sequence that was applied last; None if none was.
        entity: the entity of the sequence; None if the handler raised the error itself.
        missing: the sequence that has to be applied next.
    """

    effect_happened = "no"
    retry_same_key = True

    def __init__(
        self, detail: str = "", *, last: int | None = None, entity: str | None = None, missing: int | None = None
    ) -> None:
        super().__init__(detail)
        self.last = last
        self.entity = entity
        self.missing = missing
