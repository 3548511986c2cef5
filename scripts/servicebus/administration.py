"""The administration of entities, as it is asked for over HTTP: descriptions in entries of Atom."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from access import rights_of
from entities import RefusedError, Store
from namespace import Namespace
from settings import Settings

_ATOM = "http://www.w3.org/2005/Atom"
_OURS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_STATUS = {"amqp:not-found": 404, "com.microsoft:entity-already-exists": 409}


class Asked(NamedTuple):
    """A request of HTTP."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


def answer(namespace: Namespace, asked: Asked) -> tuple[int, bytes]:
    """The status and the body of the answer."""
    rights = rights_of(asked.headers.get("authorization", ""))
    if rights is None or "manage" not in rights:
        return 401, _error(401, "MalformedToken: the claim 'Manage' is required")
    parts = urlsplit(asked.target)
    path = unquote(parts.path).strip("/").lower()
    try:
        if asked.method == "PUT":
            _put(namespace, path, asked)
            return 201, ET.tostring(_entry(namespace, path))
        if asked.method == "DELETE":
            namespace.drop(path)
            return 200, b""
        return 200, _read(namespace, path, parse_qs(parts.query))
    except RefusedError as error:
        status = _STATUS.get(error.condition, 400)
        return status, _error(status, error.description)


def _put(namespace: Namespace, path: str, asked: Asked) -> None:
    content = ET.fromstring(asked.body).find(f"{{{_ATOM}}}content")
    if content is None or len(content) != 1:
        raise RefusedError("amqp:invalid-field", "There is no description.")
    (description,) = content
    kind = description.tag.rpartition("}")[2].removesuffix("Description")
    elements = {one.tag.rpartition("}")[2]: one.text or "" for one in description}
    namespace.put(path, kind, Settings(elements), update="if-match" in asked.headers)


def _read(namespace: Namespace, path: str, query: dict[str, list[str]]) -> bytes:
    """An entity; a feed of subscriptions; an empty feed for what is not there, as the service has it."""
    if path.endswith("/subscriptions"):
        topic = path.removesuffix("/subscriptions")
        if topic not in namespace.destinations:
            raise RefusedError("amqp:not-found", f"There is no topic {topic}.")
        names = sorted(namespace.destinations[topic].stores)
        begun = int(query.get("$skip", ["0"])[0])
        feed = ET.Element(f"{{{_ATOM}}}feed")
        feed.extend(_entry(namespace, f"{path}/{name}") for name in names[begun:][: int(query["$top"][0])])
        return ET.tostring(feed)
    found = _entry(namespace, path)
    return ET.tostring(ET.Element(f"{{{_ATOM}}}feed") if found is None else found)


def _entry(namespace: Namespace, path: str) -> ET.Element:
    topic, _, subscription = path.partition("/subscriptions/")
    entity = namespace.destinations.get(topic)
    if entity is None or (subscription and subscription not in entity.stores):
        return ET.Element(f"{{{_ATOM}}}feed")
    store = entity.stores.get(subscription)
    kind = "Subscription" if subscription else entity.kind
    settings = store.settings if subscription and store is not None else entity.settings
    entry = ET.Element(f"{{{_ATOM}}}entry")
    ET.SubElement(entry, f"{{{_ATOM}}}title").text = subscription or topic
    content = ET.SubElement(entry, f"{{{_ATOM}}}content", type="application/xml")
    description = ET.SubElement(content, f"{{{_OURS}}}{kind}Description")
    for name, text in settings.elements.items():
        ET.SubElement(description, f"{{{_OURS}}}{name}").text = text
    if store is not None:
        _count(description, store)
    return entry


def _count(description: ET.Element, store: Store) -> None:
    dead = 0 if store.dead is None else len(store.dead.messages)
    counts = ET.SubElement(description, f"{{{_OURS}}}CountDetails")
    ET.SubElement(counts, f"{{{_COUNTS}}}ActiveMessageCount").text = str(len(store.messages))
    ET.SubElement(counts, f"{{{_COUNTS}}}DeadLetterMessageCount").text = str(dead)
    ET.SubElement(description, f"{{{_OURS}}}MessageCount").text = str(len(store.messages) + dead)


def _error(status: int, detail: str) -> bytes:
    return f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>".encode()
