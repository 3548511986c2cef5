"""The configuration file of a gateway: TOML, of which every name is known or an error."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.gateway.settings import EVERYTHING, Claims, Principal, Route, Settings, Timeouts, TrustedHeader
from retrysafe.gateway.tables import (
    Read,
    TomlSource,
    TomlTable,
    address,
    duplicates,
    flag,
    networks,
    number,
    seconds,
    size,
    statuses,
    text,
    texts,
)
from retrysafe.http.policy import policy_of
from retrysafe.http.principals import SHARED

_PLAIN: Mapping[str, Read] = {
    "upstream": text,
    "store": text,
    "name": text,
    "listen": address,
    "workers": number,
    "grace": seconds,
    "connections": number,
    "idle": seconds,
    "host": text,
    "trust_forwarded": flag,
    "trust_headers": texts,
    "ca_file": text,
    "openapi": text,
    "secret_env": text,
    "encryption_keys_env": text,
}
_TABLES = ("admin", "timeouts", "principal", "defaults", "routes")
_ADMIN: Mapping[str, Read] = {"listen": address, "prefix": text}
_TIMEOUTS: Mapping[str, Read] = {"connect": seconds, "read": seconds, "total": seconds}
_OPTIONS: Mapping[str, Read] = {
    "header": text,
    "key_syntax": text,
    "key_policy": text,
    "operation": text,
    "mismatch_status": number,
    "concurrent_status": number,
    "on_5xx": text,
    "store_statuses": statuses,
    "on_large": text,
    "on_store_error": text,
    "headers": texts,
    "secrets": texts,
    "canonical_json": flag,
    "body_memory": size,
    "body_limit": size,
    "response_limit": size,
    "problem_base": text,
}
"""`retrysafe.http.policy.Options` that a route may have; the others follow from its pattern."""
_POLICY: Mapping[str, Read] = {
    "key": text,
    "effects": text,
    "window": seconds,
    "memory": seconds,
    "lease": seconds,
    "concurrency": duplicates,
    "forward_key": text,
    "unexecuted": statuses,
    "timeouts": lambda value: value,
    **_OPTIONS,
}
_HEADER: Mapping[str, Read] = {"header": text, "from": networks}
_CLAIMS: Mapping[str, Read] = {
    "jwks_url": text,
    "key_file": text,
    "algorithms": texts,
    "claim": text,
    "header": text,
    "audience": text,
    "issuer": text,
    "leeway": seconds,
}


class Loaded:
    """The settings of a file, in which upstream and store may be missing, and its OpenAPI document's place."""

    def __init__(self, values: dict[str, Any], openapi: str | None) -> None:
        self.values = values
        self.openapi = openapi

    def settings(self, **given: Any) -> Settings:
        """The settings, of which the given ones win. Raises `ConfigurationError`."""
        values = self.values | {name: value for name, value in given.items() if value is not None}
        for name in ("upstream", "store"):
            if not values.get(name):
                raise ConfigurationError(f"{name} is missing: give --{name} URL, or {name} in the file.")
        return Settings(**values)


def load(path: str | Path) -> Loaded:
    """Read a file. Raises `ConfigurationError` with line and name for what it cannot mean."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return parse(content, str(path))


def parse(content: str, name: str = "the file") -> Loaded:
    """Read the text of a file; keys and secrets are taken from the files and variables that it names."""
    try:
        document = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    source = TomlSource(name, content)
    plain = {key: value for key, value in document.items() if key not in _TABLES}
    top = TomlTable(source, "", 0, plain)
    values = top.read({**_PLAIN, **dict.fromkeys(_TABLES, text)})
    openapi = values.pop("openapi", None)
    if (variable := values.pop("secret_env", None)) is not None:
        values["secret"] = _variable(top, "secret_env", variable)
    if (variable := values.pop("encryption_keys_env", None)) is not None:
        values["encryption"] = variable
    admin = _table(source, document, "admin").read(_ADMIN)
    values |= {name: admin[key] for key, name in (("listen", "admin"), ("prefix", "admin_prefix")) if key in admin}
    if "principal" in document:
        said = document["principal"]
        values["principal"] = said if said == SHARED else _principal(_table(source, document, "principal"))
    return Loaded({**values, **_routes(source, document)}, openapi)


def _table(source: TomlSource, document: Mapping[str, Any], name: str) -> TomlTable:
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise source.wrong("", 0, name, f"it is a table: write [{name}].")
    return TomlTable(source, name, 0, found)


def _variable(table: TomlTable, key: str, variable: str) -> str:
    if not os.environ.get(variable):
        raise table.wrong(key, f"there is no environment variable {variable}.")
    return os.environ[variable]


# ---------------------------------------------------------------- principals


def _principal(table: TomlTable) -> Principal:
    token = {"jwks_url", "key_file", "algorithms"} & table.values.keys()
    found = table.read(_CLAIMS if token else _HEADER)
    try:
        if not token:
            return TrustedHeader(found.get("header", ""), found.get("from", ()))
        if (file := found.pop("key_file", None)) is not None:
            found["key"] = Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        return Claims(**{"algorithms": (), **found})
    except (OSError, ConfigurationError) as error:
        raise table.wrong(min(table.values, default="header"), getattr(error, "detail", "") or str(error)) from error


# ---------------------------------------------------------------- routes


def _routes(source: TomlSource, document: Mapping[str, Any]) -> dict[str, Any]:
    waiting = Timeouts(**_table(source, document, "timeouts").read(_TIMEOUTS))
    defaults = _route(_table(source, document, "defaults"), _POLICY, Route(timeouts=waiting))
    listed = document.get("routes", [])
    if not isinstance(listed, list):
        raise source.wrong("", 0, "routes", "it is a list of tables: write [[routes]].")
    routes = []
    for place, values in enumerate(listed):
        table = TomlTable(source, "routes", place, values)
        if "match" not in values:
            raise source.wrong("routes", place, next(iter(values), "match"), 'the route has no match="POST /payments".')
        routes.append(_route(table, {"match": text, **_POLICY}, defaults))
    return {"defaults": defaults, "routes": tuple(routes)}


def _route(table: TomlTable, known: Mapping[str, Read], base: Route) -> Route:
    """The policy of a table; what it does not say is as in ``base``."""
    found = table.read(known)
    options = {key: found.pop(key) for key in list(found) if key in _OPTIONS}
    if "timeouts" in found:
        found["timeouts"] = _timeouts(table, found["timeouts"], base.timeouts)
    for key, value in options.items():
        try:
            policy_of({key: value})  # type: ignore[misc]
        except ConfigurationError as error:
            raise table.wrong(key, error.detail) from error
    if "match" not in found:
        found["match"] = EVERYTHING
    try:
        return replace(base, **found, options={**base.options, **options})
    except ConfigurationError as error:
        blamed = next((key for key in found if error.detail.startswith(f"{key}=")), next(iter(table.values), "match"))
        raise table.wrong(blamed, error.detail) from error


def _timeouts(table: TomlTable, value: Any, base: Timeouts) -> Timeouts:
    if not isinstance(value, dict):
        raise table.wrong("timeouts", 'it is a table: { read = "30s" }.')
    inner = TomlTable(table.source, f"{table.name}.timeouts", table.number, value)
    return replace(base, **inner.read(_TIMEOUTS))
