"""Connections of AMQP 1.0, each with an engine of Proton, and what of the namespace they have in common."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from answers import answered, performed, put_token
from contents import decoded, incoming, instant, outgoing
from entities import SESSION_LOST, RefusedError, Store
from namespace import LARGEST, Namespace
from proton import (
    Collector,
    Condition,
    Connection,
    Delivery,
    Described,
    Event,
    Link,
    Terminus,
    Transport,
    symbol,
)

_SESSION = "com.microsoft:session-filter"
_TIMEOUT = "com.microsoft:timeout"
_LOCKED_UNTIL = "com.microsoft:locked-until-utc"
_PATIENCE = 65.0
"""Seconds for which a receiver waits for a session, unless it says otherwise."""
_TICKS_BEFORE_1970 = 621355968000000000
_CREDIT = 100
_ENDING = ("amqp:not-found", "com.microsoft:entity-disabled", "amqp:link:message-size-exceeded")
"""Conditions for which the service does not refuse a message, but ends the link that it came by."""


@dataclass(eq=False)
class Outlet:
    """A link by which messages leave a store."""

    link: Link
    peer: Peer
    store: Store
    session: str | None = None
    deliveries: dict[Delivery, uuid.UUID] = field(default_factory=dict)


@dataclass(eq=False)
class Waiting:
    """A receiver that waits for a session which nobody has."""

    outlet: Outlet
    until: float
    key: Any


class Hub:
    """The common state of connections: outlets are filled as messages come and locks end."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.peers: set[Peer] = set()
        self.outlets: dict[Store, list[Outlet]] = {}
        self.waiting: list[Waiting] = []

    async def tick(self, pause: float) -> None:
        """Let locks and waits expire, for ever."""
        while True:
            await asyncio.sleep(pause)
            now = time.time()
            for store in list(self.namespace.stores()):
                if store.sessions or store.locked:
                    store.lost = self._session_lost
                    store.tick(now)
            for one in [one for one in self.waiting if one.until <= now]:
                self.waiting.remove(one)
                one.outlet.peer.refuse(one.outlet.link, "com.microsoft:timeout", "There is no session to be had.")
            self.work()

    def work(self) -> None:
        """Hand out what is ready, and let everything be written."""
        now = time.time()
        for one in list(self.waiting):
            name = one.outlet.store.next_session()
            if name is not None:
                self.waiting.remove(one)
                one.outlet.peer.grant(one.outlet, name, one.key, now)
        for store, outlets in list(self.outlets.items()):
            for outlet in list(outlets):
                outlet.peer.fill(outlet, now)
            if len(outlets) > 1:
                outlets.append(outlets.pop(0))  # each in turn is the first
            if not outlets:
                del self.outlets[store]
        self.namespace.journal.commit()
        for peer in list(self.peers):
            peer.flush()

    def forget(self, outlet: Outlet, *, in_order: bool) -> None:
        """Its link is gone. A session is released if the other side said so, and not if it is merely silent."""
        if outlet in self.outlets.get(outlet.store, ()):
            self.outlets[outlet.store].remove(outlet)
        self.waiting = [one for one in self.waiting if one.outlet is not outlet]
        if outlet.session is not None and in_order:
            outlet.store.release_session(outlet.session, outlet)

    def _session_lost(self, owner: object) -> None:
        if isinstance(owner, Outlet) and owner in self.outlets.get(owner.store, ()):
            self.outlets[owner.store].remove(owner)
            owner.peer.end(owner.link, SESSION_LOST, "The lock on the session has expired.")


class Peer:
    """The other side of one connection."""

    def __init__(self, hub: Hub, transport: asyncio.Transport) -> None:
        self._hub, self._socket = hub, transport
        self._engine, self._connection, self._collector = Transport(Transport.SERVER), Connection(), Collector()
        self._engine.max_frame_size = 65536
        self._engine.sasl().allowed_mechs("ANONYMOUS")
        self._engine.require_auth(False)
        self._connection.collect(self._collector)
        self._engine.bind(self._connection)
        self._outlets: dict[Link, Outlet] = {}
        self._answers: dict[str, Link] = {}
        self._rights: frozenset[str] = frozenset()
        self._content: dict[Delivery, bytes] = {}
        hub.peers.add(self)

    # ------------------------------------------------------------ octets

    def received(self, data: bytes) -> None:
        """Octets have come."""
        while data:
            room = self._engine.capacity()
            if room <= 0:
                break
            self._engine.push(data[:room])
            data = data[room:]
            self._process()
        self._hub.work()

    def flush(self) -> None:
        """Send what there is to be sent."""
        self._process()
        while (pending := self._engine.pending()) > 0:
            self._socket.write(self._engine.peek(pending))
            self._engine.pop(pending)
        if self._engine.pending() < 0 and not self._socket.is_closing():
            self._socket.close()

    def gone(self) -> None:
        """The connection is there no more."""
        self._hub.peers.discard(self)
        for outlet in list(self._outlets.values()):
            self._hub.forget(outlet, in_order=False)
        self._outlets.clear()

    # ------------------------------------------------------------ events

    def _process(self) -> None:
        while (event := self._collector.peek()) is not None:
            self._handle(event)
            self._collector.pop()

    def _handle(self, event: Event) -> None:
        kind = event.type
        if kind == Event.CONNECTION_REMOTE_OPEN:
            self._connection.container = "stand-in"
            self._connection.open()
        elif kind == Event.SESSION_REMOTE_OPEN:
            event.session.open()
        elif kind == Event.LINK_REMOTE_OPEN:
            self._attached(event.link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            self._detached(event.link)
            event.link.close()
        elif kind == Event.SESSION_REMOTE_CLOSE:
            self._detached_all(event.session)
            event.session.close()
        elif kind == Event.CONNECTION_REMOTE_CLOSE:
            self._detached_all(None)
            self._connection.close()
        elif kind == Event.DELIVERY:
            self._delivery(event.delivery)

    def _detached(self, link: Link) -> None:
        outlet = self._outlets.pop(link, None)
        if outlet is not None:
            self._hub.forget(outlet, in_order=True)

    def _detached_all(self, session: Any) -> None:
        for link in [link for link in self._outlets if session is None or link.session == session]:
            self._detached(link)

    # ------------------------------------------------------------ links

    def _attached(self, link: Link) -> None:
        link.source.address, link.target.address = link.remote_source.address, link.remote_target.address
        link.snd_settle_mode, link.rcv_settle_mode = link.remote_snd_settle_mode, link.remote_rcv_settle_mode
        address = _path(link.source.address if link.is_sender else link.target.address)
        try:
            if address.endswith(("$cbs", "$management")):
                if link.is_sender:
                    self._answers[address] = link
            elif link.is_sender:
                self._demand("listen")
                self._outlet(link, address)
                return
            else:
                self._demand("send")
                self._hub.namespace.destination(address)
                link.max_message_size = LARGEST
        except RefusedError as error:
            self.refuse(link, error.condition, error.description)
            return
        link.open()
        if link.is_receiver:
            link.flow(_CREDIT)

    def _demand(self, right: str) -> None:
        if right not in self._rights:
            raise RefusedError("amqp:unauthorized-access", f"Unauthorized access: '{right}' claim(s) are required.")

    def _outlet(self, link: Link, address: str) -> None:
        store = self._hub.namespace.store(address)
        asked, key, name = _session_filter(link)
        sessions = store.settings.sessions and store.dead is not None
        if asked != sessions:
            said = "requires sessions" if sessions else "does not require sessions"
            raise RefusedError("amqp:not-allowed", f"It is not possible to create this receiver: the entity {said}.")
        outlet = self._outlets[link] = Outlet(link, self, store)
        if not sessions:
            link.open()
            self._hub.outlets.setdefault(store, []).append(outlet)
        elif name is not None:
            self.grant(outlet, name, key, time.time())
        else:
            told = {str(one): value for one, value in (link.remote_properties or {}).items()}
            patience = told.get(_TIMEOUT, _PATIENCE * 1000) / 1000
            self._hub.waiting.append(Waiting(outlet, time.time() + patience, key))

    def grant(self, outlet: Outlet, name: str, key: Any, now: float) -> None:
        """Give a session to a receiver. Raises RefusedError when another one has it."""
        lock = outlet.store.lock_session(name, outlet, now)
        outlet.session = name
        outlet.link.source.filter.put_dict({symbol(key): Described(symbol(key), name)})
        outlet.link.properties = {symbol(_LOCKED_UNTIL): int(lock.until * 10_000_000) + _TICKS_BEFORE_1970}
        outlet.link.open()
        self._hub.outlets.setdefault(outlet.store, []).append(outlet)

    def refuse(self, link: Link, condition: str, description: str) -> None:
        """Answer an attach with a detach that says why."""
        self._outlets.pop(link, None)
        refused = link.source if link.is_sender else link.target
        refused.type = Terminus.UNSPECIFIED  # there is no such end of the link
        link.open()
        self.end(link, condition, description)

    def end(self, link: Link, condition: str, description: str) -> None:
        """Detach, saying why."""
        self._outlets.pop(link, None)
        link.condition = _condition(condition, description)
        link.close()

    # ------------------------------------------------------------ messages

    def _delivery(self, delivery: Delivery) -> None:
        link = delivery.link
        if link.is_sender:
            self._settled(delivery)
            return
        if not delivery.readable:
            return
        content = self._content.pop(delivery, b"") + (link.recv(delivery.pending) or b"")
        if delivery.partial:
            self._content[delivery] = content
            return
        link.advance()
        address = _path(link.target.address)
        if address.endswith(("$cbs", "$management")):
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
            self._answer(address, content)
        else:
            self._sent(delivery, address, content)
        link.flow(max(0, _CREDIT - link.credit))

    def _sent(self, delivery: Delivery, address: str, content: bytes) -> None:
        try:
            destination = self._hub.namespace.destination(address)
            if len(content) > LARGEST:
                raise RefusedError("amqp:link:message-size-exceeded", "The message is larger than is allowed.")
            self._hub.namespace.send(destination, incoming(content), time.time())
        except RefusedError as error:
            if error.condition in _ENDING:
                self.end(delivery.link, error.condition, error.description)
                return
            delivery.local.condition = _condition(error.condition, error.description)
            delivery.update(Delivery.REJECTED)
        else:
            delivery.update(Delivery.ACCEPTED)
        delivery.settle()

    def _answer(self, address: str, content: bytes) -> None:
        request = decoded(content)
        if address.endswith("$cbs"):
            self._rights, answer = put_token(request)
        else:
            store = self._hub.namespace.store(address.rpartition("/")[0])
            session = (request.body or {}).get("session-id")
            lock = store.sessions.get(session) if session is not None else None
            ours = lock is not None and getattr(lock.owner, "peer", None) is self
            answer = performed(store, lock.owner if lock is not None and ours else None, request, time.time())
        if address in self._answers:
            self._answers[address].send(answered(request, answer))

    def fill(self, outlet: Outlet, now: float) -> None:
        """Hand out as many as the receiver has asked for."""
        while outlet.link.credit > 0 and (message := outlet.store.take(outlet.session, now)) is not None:
            token = message.token
            assert token is not None
            annotations = {
                "sequence-number": message.seq,
                "enqueued-time": instant(message.enqueued),
                "locked-until": instant(message.until),
            }
            delivery = outlet.link.delivery(token.bytes_le)
            outlet.link.stream(outgoing(message.content, message.count, annotations))
            outlet.link.advance()
            outlet.deliveries[delivery] = token

    def _settled(self, delivery: Delivery) -> None:
        outlet = self._outlets.get(delivery.link)
        state = delivery.remote_state
        token = None if outlet is None else outlet.deliveries.get(delivery)
        if not state and delivery.settled:
            delivery.settle()
        if outlet is None or token is None or not state:
            return
        try:
            _apply(outlet.store, token, delivery, time.time())
        except RefusedError as error:
            delivery.local.condition = _condition(error.condition, error.description)
            state = Delivery.REJECTED
        del outlet.deliveries[delivery]
        delivery.update(state)
        delivery.settle()


def _apply(store: Store, token: uuid.UUID, delivery: Delivery, now: float) -> None:
    state, told = delivery.remote_state, delivery.remote
    if state == Delivery.ACCEPTED:
        store.complete(token, now)
    elif state == Delivery.RELEASED:
        store.release(token, now)
    elif state == Delivery.REJECTED:
        info = {str(name): value for name, value in (getattr(told.condition, "info", None) or {}).items()}
        reason = info.get("DeadLetterReason") or ""
        store.dead_letter(token, reason, info.get("DeadLetterErrorDescription") or "", now)
    elif told.undeliverable:
        raise RefusedError("amqp:not-implemented", "Messages are not deferred here.")
    else:
        store.abandon(token, now)


def _condition(name: str, description: str) -> Condition:
    """An error with all its fields: the client library of Python loses one that has no info."""
    return Condition(name, description, {symbol("tracking-id"): uuid.uuid4().hex})


def _session_filter(link: Link) -> tuple[bool, Any, str | None]:
    """Tell whether a session is asked for, by what key, and which; None: any."""
    filters = link.remote_source.filter
    filters.rewind()
    found = filters.get_object() if filters.next() else None
    for key, value in (found or {}).items():
        if str(key) == _SESSION:
            return True, str(key), value.value if isinstance(value, Described) else value
    return False, None, None


def _path(address: str | None) -> str:
    """The path of an entity, also if the whole address is given."""
    address = address or ""
    return address.split("/", 3)[3] if "://" in address else address
