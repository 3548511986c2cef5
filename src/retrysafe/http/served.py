"""The integrations that can tell which routes of an application nothing guards."""

from __future__ import annotations

import importlib
import sys
from typing import Any

KINDS = {
    "fastapi:FastAPI": "fastapi",
    "starlette.applications:Starlette": "starlette",
    "flask:Flask": "flask",
    "django.core.handlers.base:BaseHandler": "django",
}
"""Types of applications, the more special ones first, with the module here that has ``unguarded(app)``."""


def unguarded(app: object) -> list[str] | None:
    """The routes for POST and PATCH that nothing guards; None for an application of which nothing is known."""
    for kind, integration in KINDS.items():
        module, _, name = kind.partition(":")
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(app, getattr(loaded, name)):
            found: list[str] = _unguarded_of(integration)(app)
            return found
    return None


def _unguarded_of(integration: str) -> Any:
    return importlib.import_module(f"retrysafe.http.{integration}").unguarded
