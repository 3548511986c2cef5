"""The pages' templates: every value is escaped, and a name that is not there is an error."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from retrysafe.admin.rendering import duration, instant
from retrysafe.protocol.records import counted

STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files that pages refer to, and their media types."""


@cache
def static(name: str) -> bytes:
    return files("retrysafe.console").joinpath("static", name).read_bytes()


@cache
def version() -> str:
    """Changes with the content of the files, so that browsers may keep them."""
    return hashlib.sha256(b"".join(map(static, sorted(STATIC)))).hexdigest()[:12]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("retrysafe.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"duration": duration, "instant": instant, "number": "{:,}".format}
    made.filters["counted"] = lambda number, capped: counted(number, capped=capped)
    made.filters["ago"] = lambda seconds: f"{duration(max(0.0, seconds))} ago"
    return made


def render(name: str, values: dict[str, Any]) -> str:
    return _environment().get_template(name).render(values)
