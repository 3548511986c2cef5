"""From a command line, a file, the environment and the upstream's OpenAPI document to settings."""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

from retrysafe.errors import ConfigurationError
from retrysafe.gateway.config import Loaded, load
from retrysafe.gateway.openapi import routes_of
from retrysafe.gateway.settings import Settings
from retrysafe.gateway.tables import address

_PATIENCE = 10.0


def settings_of(options: argparse.Namespace, *, store: str, secret: str) -> Settings:
    """The settings of a command line; ``store`` and ``secret`` are the variables that it may leave to."""
    loaded = Loaded({}, None) if options.config is None else load(options.config)
    settings = loaded.settings(
        upstream=options.upstream,
        store=options.store or loaded.values.get("store") or os.environ.get(store),
        listen=_address("--listen", options.listen),
        admin=_address("--admin", options.admin),
        workers=options.workers,
        secret=loaded.values.get("secret") or os.environ.get(secret),
    )
    source = options.openapi or loaded.openapi
    if source is None:
        return settings
    found = routes_of(_document(source, settings.upstream), settings.defaults, settings.upstream)
    return replace(settings, routes=(*settings.routes, *_new(found, settings)))


def _new(found: Iterable[Any], settings: Settings) -> list[Any]:
    """Routes that the file does not have itself: what it says comes first."""
    named = {route.match for route in settings.routes}
    return [route for route in found if route.match not in named]


def _address(name: str, value: str | None) -> Any:
    try:
        return None if value is None else address(value)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _document(source: str, upstream: str) -> Any:
    """A file, unless it is a URL, or there is no such file and it is a path on the upstream."""
    try:
        if "://" not in source and (not source.startswith("/") or Path(source).is_file()):
            return json.loads(Path(source).read_text(encoding="utf-8"))
        url = source if "://" in source else upstream.rstrip("/") + source
        with urllib.request.urlopen(url, timeout=_PATIENCE) as response:
            return json.loads(response.read())
    except (OSError, URLError) as error:
        raise ConfigurationError(f"openapi {source}: {getattr(error, 'reason', None) or error}.") from error
    except ValueError as error:
        raise ConfigurationError(f"openapi {source}: this is no JSON: {error}.") from error
