"""The integrations that can tell which routes of an application are guarded."""

from __future__ import annotations

import importlib
import sys

from retrysafe.http.policy import ServedRoute

KINDS = {
    "fastapi:FastAPI": "fastapi",
    "starlette.applications:Starlette": "starlette",
    "flask:Flask": "flask",
    "litestar:Litestar": "litestar",
    "aiohttp.web:Application": "aiohttp",
    "django.core.handlers.base:BaseHandler": "django",
}
"""Types of applications, the more special ones first, with the module here that has ``find_routes(app)``."""


def find_routes(app: object) -> list[ServedRoute]:
    """The routes for POST and PATCH; none for an application of which nothing is known."""
    for kind, integration in KINDS.items():
        module, _, name = kind.partition(":")
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(app, getattr(loaded, name)):
            return list(importlib.import_module(f"retrysafe.http.{integration}").find_routes(app))
    return []
