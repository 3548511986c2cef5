"""What can be wrong with a message, before anything has left."""

from __future__ import annotations

from retrysafe.errors import RetrysafeError


class MessageRefused(RetrysafeError):
    """The message cannot be sent as it is, so it was not written into the outbox.

    Nothing has left, and nothing will because of this call; your transaction is as it was. Change what is named
    above, or give the payload as bytes with their media type, and add the message again.
    """

    effect_happened = "no"
    retry_same_key = True
    safe_new_key = True


class BrokerUnavailable(RetrysafeError):
    """The broker cannot be reached, or takes nothing from anybody, so the relay stopped for now.

    Every message that has not left is where it was, and none has lost an attempt by it. Some may have reached the
    broker all the same; they leave again, under the same ids. Relays that run try again by themselves; see to the
    broker and its URL.
    """

    retry_same_key = True


class QueueMissing(BrokerUnavailable):
    """The broker answers, and has no queue for what is to be consumed, so that no message can arrive.

    Nothing was received. Declare the queue as named above, before the first message is published: a message for a queue
    that is missing waits in the outbox, or is lost where another group's queue takes it. Subscriptions look again by
    themselves.
    """


class MessageUnreadable(RetrysafeError):
    """The payload of the message is not what its media type says, so no handler can be given it.

    The handler has not run. The message is in the dead letters; if the type is at fault and the payload is right, let
    the consumer take bytes with ``parse=`` and redrive it, else have it sent again as a new message.
    """

    effect_happened = "no"
    retry_same_key = True
    safe_new_key = True


class MessageDead(RetrysafeError):
    """The message was given up: it lies in the dead letters, and its key is settled as failed.

    Nothing of the handler's own transaction was kept; what it did elsewhere may have happened, as often as it was
    tried. Find out why, then redrive it: ``retrysafe inbox dead list``, ``retrysafe inbox dead redrive``.
    """


class SequenceGap(RetrysafeError):
    """The message is not the next one of its entity: what comes before it has not been applied.

    Let it leave the handler: what the handler did is rolled back, and the message comes again after a pause. If what is
    missing does not come, or was given up itself, it ends in the dead letters, and so does at once what follows it.
    Redrive the missing one, or skip it (``retrysafe inbox skip``), then redrive the others of its key.

    Attributes:
        last: the sequence that was applied last; None if none was.
        entity: whose sequence it is; None where the handler raised the error itself.
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
