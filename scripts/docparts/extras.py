"""The extras that pyproject.toml declares, and what each is for."""

from __future__ import annotations

import re
import tomllib

from docparts import ROOT
from docparts.markdown import codes, table
from retrysafe.backends.registry import specs
from retrysafe.messaging.brokers import registry

OF_STORES = {
    spec.extra: (f"{spec.title}, sync and async", f"how-to/run-on-{spec.extra}")
    for spec in specs()
    if spec.extra == spec.name != "redis"  # this extra is for a broker, too
}
PURPOSES = {
    "psycopg": ("PostgreSQL, sync and async", "how-to/migrate-the-schema"),
    "postgresql": ("the same as `psycopg`", "how-to/migrate-the-schema"),
    "asyncpg": ("PostgreSQL, async", "how-to/guard-a-block-in-my-transaction"),
    "mysql": ("MySQL and MariaDB, sync and async", "how-to/run-on-mysql-or-mariadb"),
    "sqlserver": ("SQL Server and Azure SQL by Microsoft's driver; never run", "how-to/run-on-sql-server"),
    "pymssql": ("the same by pymssql", "how-to/run-on-sql-server"),
    "sqlalchemy": (
        "engines, sessions and connections of SQLAlchemy as store and transaction",
        "how-to/guard-a-block-in-my-transaction",
    ),
    "redis": ("Redis and Valkey as a store; Redis Streams", "how-to/run-on-redis-or-valkey"),
    **OF_STORES,
    "django": ("aliases of `DATABASES`, views, migrations", "how-to/use-in-django"),
    "drf": ("views of Django REST framework", "how-to/http-drf"),
    "alembic": ("the schema as Alembic revisions", "how-to/own-the-schema"),
    "fastapi": ("FastAPI routers", "how-to/http-fastapi"),
    "starlette": ("Starlette applications", "how-to/http-starlette"),
    "litestar": ("Litestar applications", "how-to/http-litestar"),
    "flask": ("Flask applications", "how-to/http-flask"),
    "aiohttp": ("aiohttp applications", "how-to/http-aiohttp"),
    "grpc": ("gRPC servers and clients", "how-to/http-grpc"),
    "gateway": ("the reverse proxy `retrysafe gateway`", "how-to/gateway"),
    "httpx": ("the retrying client for httpx", "how-to/http-client"),
    "requests": ("the retrying client for requests", "how-to/http-client"),
    "mcp": ("tools of MCP servers; `retrysafe gateway mcp` needs no extra", "how-to/mcp"),
    "langgraph": ("tools of LangGraph", "how-to/agents"),
    "openai-agents": ("tools of the OpenAI Agents SDK", "how-to/agents"),
    "pydantic-ai": ("tools of Pydantic AI", "how-to/agents"),
    "duckdb": ("loads into DuckDB", "how-to/loads"),
    "delta": ("loads into Delta Lake", "how-to/loads"),
    "iceberg": ("loads into Iceberg", "how-to/loads"),
    "webhooks": ("sending webhooks; receiving them needs no extra", "how-to/send-webhooks"),
    **{
        spec.extra: (f"publishing to and consuming from {spec.title}", f"how-to/{spec.name}")
        for spec in registry.specs()
        if spec.extra not in ("", "redis", "sqs")
    },
    "sqs": ("publishing to Amazon SQS and SNS, consuming from SQS", "how-to/sqs"),
    "faststream": ("consumers of FastStream", "how-to/faststream"),
    "celery": ("tasks of Celery", "how-to/celery"),
    "dramatiq": ("actors of Dramatiq", "how-to/dramatiq"),
    "taskiq": ("tasks of Taskiq", "how-to/taskiq"),
    "pydantic": ("models as results and arguments", "how-to/results-that-can-be-stored"),
    "console": ("the operators' console in a browser", "how-to/console"),
    "crypto": ("encrypted results, `Keyring`", "how-to/encrypt-stored-results"),
    "otel": ("metrics and spans of OpenTelemetry", "how-to/observe-and-log"),
    "metrics": ("`--metrics` of `retrysafe relay` and `retrysafe inbox run`", "how-to/relay"),
    "completion": ("`retrysafe completion`, for bash and zsh", "reference/commands"),
    "testing": ("`StoreSuite` and random histories, with pytest and Hypothesis", "how-to/test-your-code"),
    "demo": ("`retrysafe demo` with its API and live view", "how-to/run-the-demo"),
}
"""The purpose of each extra, and its page."""
DEVELOPMENT = {"bench", "browser", "dev", "docs", "load", "mutate", "rivals", "suite"}
"""Extras for work on retrysafe itself."""


def extras() -> str:
    """One row per extra that a user installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {name: needs for name, needs in project["optional-dependencies"].items() if name not in DEVELOPMENT}
    if unlike := declared.keys() ^ PURPOSES.keys():
        raise SystemExit(f"docparts/extras.py and pyproject.toml differ in {', '.join(sorted(unlike))}")
    rows = (
        (f"[`{name}`](../{page}.md)", purpose, codes(re.split(r"[;]", need)[0].strip() for need in declared[name]))
        for name, (purpose, page) in PURPOSES.items()
    )
    return table(("extra", "for", "installs"), rows)
