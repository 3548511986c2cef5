"""Log lines as JSON, with the standard library's logging alone."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any


class JsonFormatter(logging.Formatter):
    """Writes each log record as one line of JSON: an event of retrysafe with its fields, any other as a message.

    An event has ``event`` (its stable name), ``alias`` (the literature's name, if there is one), ``boundary``,
    ``operation``, ``key`` (redacted), ``attempt``, and the fields of its name.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        told = getattr(record, "retrysafe", None)
        if isinstance(told, dict):
            line["event"] = told["name"]
            if told["alias"]:
                line["alias"] = told["alias"]
            line |= {name: told[name] for name in ("boundary", "operation", "key", "attempt")} | dict(told["fields"])
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
