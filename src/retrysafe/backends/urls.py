"""What URLs of stores have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from retrysafe.errors import ConfigurationError


def url_options(options: Mapping[str, str], known: tuple[str, ...], url_kind: str) -> None:
    """Refuse an option that a URL cannot have."""
    for name in options:
        if name not in known:
            raise ConfigurationError(f"store=: a {url_kind} URL has no option {name!r}; it has {', '.join(known)}.")


_SECRET = re.compile(r"(?i)((?:ssl)?pass(?:word|file)\s*=\s*)('(?:[^'\\\\]|\\\\.)*'|[^&\s]+)")


def without_password(url: str) -> str:
    """A URL or conninfo as it may be shown."""
    parts = urlsplit(url)
    if "://" in url and parts.password is not None:
        url = urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))
    return _SECRET.sub(r"\1***", url)
