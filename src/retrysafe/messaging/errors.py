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
