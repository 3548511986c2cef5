"""The results of a run as a file, with the machine that they belong to."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import retrysafe
from benchmarks import services
from benchmarks.figures import Result

HERE = Path(__file__).parent
HISTORY = HERE / "results"
"""One file for each run; git ignores them."""
RECORDED = HERE / "recorded.json"
"""The run that the docs show."""
_FOLDERS = re.compile(r"(?<![\w:/])/(?:[^/\s'\"]+/)+")
_LIBRARIES = (
    "asgi-idempotency-header",
    "asyncpg",
    "aio-pika",
    "aiobotocore",
    "aws-lambda-powertools",
    "confluent-kafka",
    "dbos",
    "django",
    "faststream-outbox",
    "flask",
    "google-cloud-pubsub",
    "hiredis",
    "idemkit",
    "nats-py",
    "paho-mqtt",
    "psycopg",
    "redis",
    "starlette",
    "uvicorn",
    "uvloop",
)


def run_of(
    rows: Mapping[str, Result], failed: Mapping[str, str], effort: str, seconds: float, machine: Mapping[str, Any]
) -> dict[str, Any]:
    """A run as it is written; ``machine`` was read before it."""
    return {
        "started": (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(seconds),
        "effort": effort,
        "machine": machine,
        "versions": libraries() | servers(),
        "rows": [{**row, "errors": _without_paths(row["errors"])} for row in rows.values()],
        "failed": _without_paths(failed),
    }


def _without_paths(errors: Mapping[str, str]) -> dict[str, str]:
    """Errors as they may be published: of a file only its name."""
    return {name: _FOLDERS.sub("", error) for name, error in errors.items()}


def write(run: Mapping[str, Any], *, folder: Path = HISTORY, recorded: Path | None = None) -> Path:
    """Add a run to the history; the path of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _text(run)
    path = folder / f"{run['started'].replace(':', '')}.json"
    for one in (path, recorded):
        if one is not None:
            one.write_text(text, encoding="utf-8")
    return path


def _text(run: Mapping[str, Any]) -> str:
    """JSON with a line for each row."""
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in run["rows"])
    rest = json.dumps({name: value for name, value in run.items() if name != "rows"}, indent=1, ensure_ascii=False)
    return f'{rest.removesuffix("}").rstrip()},\n "rows": [\n{rows}\n]}}\n'


def read(path: Path) -> dict[str, Any]:
    """A run that was written."""
    run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return run


def rows_of(run: Mapping[str, Any]) -> dict[str, Result]:
    """The results of a run, by name of row."""
    return {row["name"]: row for row in run["rows"]}


def machine() -> dict[str, Any]:
    """Describe the machine, without anything that identifies it."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "load before": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def libraries() -> dict[str, str]:
    """Return the versions of the measured libraries, and their interpreter."""
    found = {
        "retrysafe": retrysafe.__version__,
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def servers() -> dict[str, str]:
    """The versions of the servers that can be reached."""
    found = {}
    for service, version in (("postgresql", _postgresql), ("redis", _redis), ("rabbitmq", _rabbitmq)):
        if not services.missing((service,)):
            with suppress(Exception):
                found[f"{service} server"] = version(services.url(service))
    return found


def _postgresql(url: str) -> str:
    import psycopg

    with psycopg.connect(url) as connection:
        return str(connection.info.parameter_status("server_version")).partition(" ")[0]


def _redis(url: str) -> str:
    import redis

    with redis.Redis.from_url(url) as client:
        about: Any = client.info("server")
        return str(about["redis_version"])


def _rabbitmq(url: str) -> str:
    import asyncio

    import aio_pika

    async def asked() -> str:
        async with await aio_pika.connect(url) as connection:
            transport: Any = connection.transport
            version = transport.connection.server_properties["version"]
            return version.decode() if isinstance(version, bytes) else str(version)

    return asyncio.run(asked())
