"""A key for intents that come without an id: made of what the intent says, in a form that has a version."""

from __future__ import annotations

import hashlib

from retrysafe.errors import InvalidKey
from retrysafe.protocol.canonical import NotCanonical, of_value

_VERSION = "c1"


def content_key(*parts: object) -> str:
    """Return a key made of content: ``c1-`` and the SHA-256 of its canonical form, 67 characters.

    Equal parts give one key, in any process and on any machine: None, bool, int, finite float, text, bytes, Decimal,
    UUID, dates and times, enums, lists, sets, mappings, dataclasses and pydantic models. The order of members and sets
    does not count, and an instant is the same in every time zone; ``1``, ``"1"`` and ``1.0`` differ, and so do two
    spellings of a text. ``c1`` is the version of the form: it stays the same for ever, and another form would get
    another name.

    Two intents that are wanted and say the same are *one* key: add what tells them apart (a date, a line number), or
    use an id that the caller makes. A client that knows the content can guess the key.

    Raises `InvalidKey` without parts, and for a part that has no canonical form.
    """
    if not parts:
        raise InvalidKey("content_key() needs the parts that the key is made of, such as content_key(customer, day).")
    try:
        form = of_value(parts)
    except NotCanonical as error:
        raise InvalidKey(f"content_key(): {error}") from error
    return f"{_VERSION}-{hashlib.sha256(form).hexdigest()}"
