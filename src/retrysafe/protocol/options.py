"""Options that are given as ``**options``: what is not known is refused, wherever they are taken."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from retrysafe.errors import ConfigurationError


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Raise `ConfigurationError` for an option that is misspelt, or is another thing's."""
    unknown = set(given).difference(known)
    if unknown:
        name = min(unknown)
        meant = "".join(f" Did you mean {near}=?" for near in difflib.get_close_matches(name, known, 1))
        raise ConfigurationError(f"{name}= is no option; there are {', '.join(known)}.{meant}")
