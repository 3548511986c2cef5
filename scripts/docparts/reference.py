"""The names that users call, implement and catch: from signatures and docstrings."""

from __future__ import annotations

import inspect
from typing import Any

import retrysafe
from docparts.markdown import paragraphs, prose, signature, table, type_
from retrysafe.admin.operator import Clock, Operator, Status
from retrysafe.claims.codec import Codec
from retrysafe.claims.fences import Fence
from retrysafe.errors import RetrysafeError
from retrysafe.http import client
from retrysafe.http.conditional import ETag, etag_of, evaluate
from retrysafe.protocol.events import Observer, Watch
from retrysafe.protocol.procedures import Change
from retrysafe.protocol.store import Capabilities

API = (
    "Boundary",
    "Claim",
    "Step",
    "Postponed",
    "Lease",
    "CommandBus",
    "Keyring",
    "Quota",
    "content_key",
    "current",
    "declare",
    "insert_once",
    "upsert",
    "update_if",
    "layered",
    "reject",
    "wait",
)
BASES = {"Lease": (Fence,)}
"""The classes whose members are told with those of a name."""
PORTS = ("Codec", "JSONCodec", "StoredResult", "Observer", "Event", "Watch", "LoggingObserver")
SEAMS: dict[str, Any] = {"Codec": Codec, "Observer": Observer, "Watch": Watch}


def errors() -> str:
    """One row per error class, from its docstring and class variables."""
    happened = {"no": "no", "yes": "yes", "maybe": "maybe"}
    yes_no = {True: "yes", False: "no"}
    kinds = [kind for kind in _public() if _is_error(kind) and kind is not RetrysafeError]
    rows = [
        (
            f"[`{kind.__name__}`](#{kind.__name__.lower()})",
            paragraphs(kind.__doc__)[0],
            happened[kind.effect_happened],
            yes_no[kind.retry_same_key],
            yes_no[kind.safe_new_key],
        )
        for kind in sorted(kinds, key=lambda kind: kind.__name__)
    ]
    return table(("error", "what happened", "effect happened?", "retry with the same key?", "is a new key safe?"), rows)


def error_messages() -> str:
    """One section per error class, with its whole docstring."""
    kinds = sorted(filter(_is_error, _public()), key=lambda kind: (kind is not RetrysafeError, kind.__name__))
    return "\n".join(f"### {kind.__name__}\n\n{prose(kind.__doc__)}" for kind in kinds)


def _public() -> list[Any]:
    return [getattr(retrysafe, name) for name in retrysafe.__all__]


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, RetrysafeError)


def api() -> str:
    """The names that users call."""
    return "\n".join(reference(name, getattr(retrysafe, name), *BASES.get(name, ())) for name in API)


def extension_points() -> str:
    """The names that users implement or replace."""
    return "\n".join(reference(name, getattr(retrysafe, name, None) or SEAMS[name]) for name in PORTS)


def operator() -> str:
    """The front door for people who look after keys."""
    found = (Operator, Change, Status, Clock)
    return "\n".join(reference(kind.__name__, kind) for kind in found)


def http_client() -> str:
    """Describe the HTTP client's functions, classes and errors."""
    from retrysafe.http.client import httpx, requests

    names = [name for name in client.__all__ if not _is_error(getattr(client, name))]
    parts = [reference(name, getattr(client, name)) for name in names]
    found = (httpx.RetryTransport, httpx.AsyncRetryTransport, httpx.resume, httpx.aresume)
    parts += [reference(f"httpx.{one.__name__}", one) for one in found]
    parts += [reference(f"requests.{one.__name__}", one) for one in (requests.RetryAdapter, requests.resume)]
    kinds = (getattr(client, name) for name in client.__all__ if name not in names)
    parts += [f"## `{kind.__name__}`\n\n{prose(kind.__doc__)}" for kind in kinds]
    return "\n".join(parts)


def capability_fields() -> str:
    """List the capabilities that a store declares."""
    return prose(Capabilities.__doc__)


def conditional() -> str:
    """Describe the functions that decide on preconditions, for those who build on them."""
    named: tuple[Any, ...] = (etag_of, evaluate, ETag)
    parts = ((one.__name__, signature(one, one.__name__), prose(one.__doc__)) for one in named)
    return "".join(f"### `{name}`\n\n```text\n{form}\n```\n\n{text}\n" for name, form, text in parts)


def reference(name: str, found: Any, *bases: type) -> str:
    """The section of one name, with the members of these bases."""
    if not isinstance(found, type):
        return f"## `{name}`\n\n```text\n{signature(found, name)}\n```\n\n{prose(found.__doc__)}"
    parts = [f"## `{name}`\n"]
    if "__init__" in vars(found) and name not in ("Claim", "Lease") and not getattr(found, "_is_protocol", False):
        parts.append(f"```text\n{signature(found, name).partition(' -> ')[0]}\n```\n")
    parts.append(prose(found.__doc__))
    if fields := getattr(found, "_fields", ()):
        hints = found.__annotations__
        parts.append("".join(f"- `{field}`: `{type_(hints[field])}`\n" for field in fields))
    members: dict[str, Any] = {}
    for kind in (found, *bases):
        members = members | {member: value for member, value in vars(kind).items() if member not in members}
    parts += [_member(name, member, value) for member, value in members.items() if not member.startswith("_")]
    return "\n".join(part for part in parts if part)


def _member(owner: str, name: str, value: Any) -> str:
    if not getattr(value, "__doc__", None):
        return ""
    if isinstance(value, property):
        return f"### `{owner}.{name}`\n\n{prose(value.__doc__)}"
    if inspect.isfunction(value):
        mark = "async " if inspect.iscoroutinefunction(value) else ""
        return f"### `{owner}.{name}()`\n\n```text\n{mark}{signature(value, name)}\n```\n\n{prose(value.__doc__)}"
    return ""
