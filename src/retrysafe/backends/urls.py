"""Common parts of store URLs, and the file that a path leads to, so that a file is recognised by all its names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from retrysafe import lazy
from retrysafe.errors import ConfigurationError


def file_of(path: str | None) -> tuple[str | int, ...] | None:
    """A file, whatever it is called; None for a database in memory."""
    if not path or path == ":memory:" or "mode=memory" in path:
        return None
    if path.startswith("file:"):
        path = lazy.parse.urlsplit(path).path
    path = os.path.realpath(path)
    try:
        found = os.stat(path)  # noqa: PTH116 - pathlib would double the time to import
    except OSError:
        return "sqlite", path
    return "sqlite", found.st_dev, found.st_ino


def url_options(options: Mapping[str, str], known: tuple[str, ...], url_kind: str) -> None:
    """Refuse an option that a URL cannot have."""
    for name in options:
        if name not in known:
            raise ConfigurationError(f"store=: a {url_kind} URL has no option {name!r}; it has {', '.join(known)}.")


_URL = re.compile(r"\s*[A-Za-z][\w+.-]*://")
_CONNINFO = re.compile(r"\s*\w+\s*=")
_PASSWORD = re.compile(r"(://[^/?#@:]*:).*@", re.DOTALL)
"""Up to the last @, so that a password which should have been percent-encoded is not shown either."""
_TOKEN = re.compile(r"(?i)(\b(?:nats|tls)://)[^:]*@")
"""The text before the @ of a NATS URL without a password: a secret, no user."""
_OPTIONS = re.compile(r"://[^/?#@:,]*:\d+(,[^/?#@:,]*:\d+)*(/[^?#@]*)?\?\w+=[^\s#]*$")
"""Of a URL without a user; they may have an @ themselves."""
_SECRET = re.compile(r"(?i)((?:ssl)?pass(?:word|file)\s*=\s*)('(?:[^'\\\\]|\\\\.)*'|[^&\s]+)")


def without_password(url: str) -> str:
    """A URL or conninfo as it may be shown, whether it can be read or not.

    Of other text, such as a URL without its scheme, nothing before an @ is shown.
    """
    if not _URL.match(url) and not _CONNINFO.match(url):
        before, _, host = url.rpartition("@")
        return f"…@{host}" if before else url
    if not _OPTIONS.search(url):
        url = _TOKEN.sub(r"\1***@", _PASSWORD.sub(r"\1***@", url))
    return _SECRET.sub(r"\1***", url)


def refuse_percent(url: str, argument: str) -> None:
    """Refuse a URL that libpq cannot decode: its error would have the password in it."""
    if _NO_PERCENT.search(url):
        raise ConfigurationError(
            f"{argument}={without_password(url)!r}: a % in a name or password is written %25 in a URL."
        )


def second_at(url: str) -> str:
    """Why a URL with a second @ before its path is refused: the password may end at either. Empty for others."""
    if not _SECOND_AT.match(url):
        return ""
    return (
        f"store={without_password(url)!r}: there is more than one @ before the path. In a user or password it is "
        "written %40."
    )


_SECOND_AT = re.compile(r"[^/?#]*://[^/?#@]*@[^/?#@]*@")
_NO_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
