"""Which errors of a handler say that something it needs cannot be reached, whatever the message."""

from __future__ import annotations

import errno
import socket

from retrysafe.backends.sql.drivers.base import is_unreachable
from retrysafe.errors import StoreUnavailable
from retrysafe.messaging.errors import BrokerUnavailable
from retrysafe.protocol.exception_groups import leaves

ALWAYS = (StoreUnavailable, BrokerUnavailable, ConnectionError)
"""A `TimeoutError` is not among them: work that takes too long may be the message's own."""
_NETWORK = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, socket.EAI_AGAIN}


def is_unavailable(error: BaseException, named: tuple[type[Exception], ...]) -> bool:
    """Whether an error is of the ``named`` types or one of those that always count; a group, if all in it do."""
    return all(
        isinstance(leaf, (*ALWAYS, *named))
        or (isinstance(leaf, OSError) and leaf.errno in _NETWORK)
        or is_unreachable(leaf)
        for leaf in leaves(error)
    )
