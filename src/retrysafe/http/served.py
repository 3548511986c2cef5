"""The integrations that can tell which routes of an application are guarded."""

from __future__ import annotations

import importlib
import sys

from retrysafe.http.policy import Policed

KINDS = {
    "fastapi:FastAPI": "fastapi",
    "starlette.applications:Starlette": "starlette",
    "flask:Flask": "flask",
    "django.core.handlers.base:BaseHandler": "django",
}
"""Types of applications, the more special ones first, with the module here that has ``policies(app)``."""


def policies(app: object) -> dict[str, Policed]:
    """The routes for POST and PATCH, and whether each is guarded; none for an application of which nothing is known."""
    for kind, integration in KINDS.items():
        module, _, name = kind.partition(":")
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(app, getattr(loaded, name)):
            found: dict[str, Policed] = importlib.import_module(f"retrysafe.http.{integration}").policies(app)
            return found
    return {}
