"""The errors of the client, beside those of its library. The docstring of a class is the message its user reads."""

from __future__ import annotations

from typing import Any

from retrysafe.errors import ConfigurationError, KeyExpired, KeyReused, OutcomeUnknown, StoreUnavailable


class RequestOutcomeUnknown(OutcomeUnknown):
    """Sending this request again can no longer show whether it had its effect.

    An attempt may have arrived, and the server does not promise to recognise its key (any more), or says itself
    that it does not know. It was not sent again, and no new key was made. Find out at the server whether the effect
    is there; then ``retrysafe requests discard`` removes the request from the journal, if it is in one.
    """

    def __init__(self, detail: str = "", *, response: Any = None) -> None:
        super().__init__(detail)
        self.response = response


class RequestKeyReused(KeyReused):
    """This key was used for another request; this one was not carried out.

    The effect of the other request may have happened. Use a new key for a new request, or send the first one
    again, byte by byte. ``response`` is the server's answer, or None if the journal knew it.
    """

    def __init__(self, detail: str = "", *, response: Any = None) -> None:
        super().__init__(detail)
        self.response = response


class RequestKeyExpired(KeyExpired):
    """The server has seen this key, and no longer keeps its response. Nothing was carried out now.

    The effect has happened in the past, unless every attempt failed then. Look the result up at the server; a new
    key could do the work twice.
    """

    def __init__(self, detail: str = "", *, response: Any = None) -> None:
        super().__init__(detail)
        self.response = response


class JournalUnavailable(StoreUnavailable):
    """The journal of requests could not be read or written.

    Nothing is sent that is not in the journal: if this came before the request, the effect has not happened. If it
    came after it, the request stays in the journal, and sending it again with its key gets its response.
    """


class RequestTooLarge(ConfigurationError):
    """The body is a stream longer than ``body_limit``, so it can be neither journalled nor sent twice.

    Nothing was sent. Pass the body as bytes, raise ``body_limit``, or use a client without a journal.
    """
