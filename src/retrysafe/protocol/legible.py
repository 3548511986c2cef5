"""Text that every database can keep, whatever it was received or raised with. Pure."""

from __future__ import annotations

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def distinct(text: str) -> str:
    """`legible` for identifiers: each such character becomes an escape of its own, such as ``\\x00``."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def legible(text: str) -> str:
    """The text with each NUL and each half of a surrogate pair replaced: PostgreSQL refuses the one, UTF-8 the other.

    CloudEvents 1.0.2 has neither in an attribute ("Type System"), but nobody keeps others from sending them.
    """
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
