"""Archive swept records in a file of JSON lines."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from retrysafe.admin.durable_lines import appending, write_all
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Micros, Record

Archive = Callable[[Sequence[Record]], object]
"""Called with records before they are removed; returns once they are stored durably. If it raises, they stay."""

FORMAT = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEGINS = b'{"format":'
_LOOK_BACK = 1 << 16


class JsonLines:
    """Appends every record as one line of JSON to a file, and returns when it is on disk.

    Any number of processes may share the file. If a crash leaves a partial line, the next
    writer removes it; its record is still in the store. A record may be written twice, by a sweeper
    that dies before it can remove it, or by two at once: then ``key_hash`` and ``version`` are the same.

    Instants are ISO 8601 in UTC, bytes are base64, hashes are hexadecimal. The file holds results, so it is
    created with permissions for its owner only. ``line`` renders one item if the archive holds something other than
    records; its text begins with ``{"format":``.
    """

    def __init__(self, path: str | os.PathLike[str], *, line: Callable[[Any], str] | None = None) -> None:
        self.path = Path(path)
        self._line = line or line_of

    def __call__(self, records: Sequence[Any]) -> None:
        """Append the records, and wait until they are on disk."""
        lines = "".join(f"{self._line(record)}\n" for record in records).encode()
        with appending(self.path, 0o600) as file:
            self._refuse_other(file)
            end = _whole_lines(file)
            os.ftruncate(file, end)
            try:
                write_all(file, lines)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file, end)
                raise

    def _refuse_other(self, file: int) -> None:
        """Refuse a file that is not an archive: cutting off a partial line would damage it."""
        begins = os.read(file, len(_BEGINS))
        if not _BEGINS.startswith(begins):
            raise ConfigurationError(f"{self.path} is not an archive of retrysafe: give another file.")


def line_of(record: Record) -> str:
    result = record.result
    plain: dict[str, Any] = {
        "format": FORMAT,
        "key_hash": record.key.hex(),
        "version": record.version,
        "boundary": record.boundary,
        "scope": record.scope,
        "operation": record.operation,
        "fingerprint": _text(record.fingerprint),
        "state": record.state.value,
        "attempt": record.attempt,
        "token": record.token,
        "attempts": record.attempts,
        "effects": record.effects,
        **{
            name: instant(getattr(record, name))
            for name in ("lease_until", "created", "updated", "expires", "tombstone_until")
        },
        "result": None
        if result is None
        else {
            "body": None if result.body is None else _text(result.body),
            "media_type": result.media_type,
            "codec_version": result.codec_version,
        },
    }
    return json.dumps(plain, ensure_ascii=True, separators=(",", ":"))


def instant(micros: Micros) -> str:
    """An instant in ISO 8601 with microseconds."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _whole_lines(file: int) -> int:
    """Return the offset behind the last whole line; a crash has cut short the bytes after it."""
    position = os.fstat(file).st_size
    while position > 0:
        start = max(0, position - _LOOK_BACK)
        os.lseek(file, start, os.SEEK_SET)
        found = os.read(file, position - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0
