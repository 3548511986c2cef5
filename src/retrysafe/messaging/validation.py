"""What a message may say of itself, checked before it is written.

What no broker can carry would be found when the message is to leave: over and over, and with it whatever is sent at the
same time. What a database cannot store would end the caller's transaction.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from retrysafe.messaging.cloudevents import BINDINGS, DATA, OWN
from retrysafe.messaging.errors import MessageRefused
from retrysafe.protocol.ordering import LARGEST_SEQUENCE

LONGEST_NAME = 255
"""Bytes of a topic, a type and a media type: AMQP counts bytes."""
LONGEST_HEADER_NAME = 100
LARGEST_HEADERS = 32_768
"""Bytes of all headers as they are stored: they have to fit into one frame of AMQP, and into 64 KiB of MySQL."""
_HEADER_NAME = re.compile(r"[!-~]+", re.ASCII)


def name(text: Any, argument: str) -> str:
    """A topic, a type or a media type."""
    if not isinstance(text, str):
        raise MessageRefused(f"{argument}= must be text, not {type(text).__name__}.")
    if not text:
        raise MessageRefused(f"{argument}= is empty.")
    if _has_control(text) or len(text.encode()) > LONGEST_NAME:
        raise MessageRefused(f"{argument}= has up to {LONGEST_NAME} bytes, and no control character among them.")
    return text


def sequence(number: Any) -> int | None:
    """The version of what a message is about."""
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > LARGEST_SEQUENCE:
        raise MessageRefused(f"sequence={number!r} must be a whole number of at most 63 bits.")
    return number


def headers(given: Mapping[Any, Any]) -> Mapping[str, str]:
    """Attributes beside those of every message; as in CloudEvents, text without control characters."""
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageRefused(f"headers= maps text to text; {name!r} has {value!r}.")
        if not _HEADER_NAME.fullmatch(name) or len(name) > LONGEST_HEADER_NAME:
            raise MessageRefused(
                f"headers=: the name {name!r} must be 1 to {LONGEST_HEADER_NAME} visible ASCII characters, no space."
            )
        if name.lower().startswith(BINDINGS) or name.lower() in DATA:
            raise MessageRefused(f"headers=: {name!r} would be read as an attribute of the message, or as its payload.")
        if name.lower() in OWN:
            raise MessageRefused(f"headers=: {name!r} is an attribute of every message, which has an argument for it.")
        if _has_control(value):
            raise MessageRefused(f"headers=: the value of {name!r} has a control character.")
    if (size := len(json.dumps(dict(given)))) > LARGEST_HEADERS:
        raise MessageRefused(f"headers= have {size} bytes; at most {LARGEST_HEADERS} are taken.")
    return given


def _has_control(text: str) -> bool:
    return not text.isprintable() and any(unicodedata.category(one) in ("Cc", "Cs") for one in text)
