"""A connection to an MQTT broker that is made anew when it is lost, instead of by the client library.

The library would send again by itself what is not confirmed: behind what the relay has sent again meanwhile. The event
loop reads and writes its socket; the library's own thread could not, where a process has more than 1024 open files.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from retrysafe.cancellation import WorkerThread
from retrysafe.errors import ConfigurationError

FOR_EVER = 0xFFFFFFFF
"""The expiry of a session, in seconds, that never expires."""
MOST_IN_FLIGHT = 0xFFFF
"""The number of unacknowledged messages that a receiver allows if it names none."""
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_KEEPALIVE = 5
"""Seconds after which a silent connection is tried; without an answer within as long it is lost."""
_LOOK = 1.0
"""Seconds between two looks whether it is silent."""
TAKEN_OVER = 0x8E
"""The reason code when another client has connected with the same client id."""
_NOTHING = "retrysafe/nothing"
"""A topic without subscribers: the end of a subscription to it is answered behind all that was sent before."""
_FAILED = 0x80
"""The lowest reason code of a failure."""
_UNWISHED_RETAINED = 2
"""The retain handling of a subscription that does not want what was retained before it."""


class ConnectionEnded(OSError):
    """The connection is lost or was refused. ``code``: the reason code of the broker, if it gave one."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


LOST = (OSError, TimeoutError)
"""Errors of a lost connection, or of a broker that cannot be reached."""


class Server(NamedTuple):
    """The address of a broker, and the credentials. Its text has no password."""

    host: str
    port: int
    user: str | None
    password: str | None
    tls: bool
    cafile: str | None

    def __repr__(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


def address_of(url: str) -> Server:
    """Read a URL such as mqtts://user:password@host:8883?cafile=ca.pem. Raises `ConfigurationError`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigurationError("The URL of the MQTT broker cannot be read: write mqtt://host:1883.") from error
    options = dict(parse_qsl(parts.query))
    if parts.scheme not in _PORTS or not parts.hostname or parts.path not in ("", "/") or options.keys() - {"cafile"}:
        raise ConfigurationError(
            "The URL of an MQTT broker is mqtt://user:password@host:1883 or mqtts://…:8883?cafile=FILE, and no more."
        )
    tls = parts.scheme == "mqtts"
    if options and not tls:
        raise ConfigurationError("cafile= in the URL of an MQTT broker is for mqtts://.")
    user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
    return Server(parts.hostname, port or _PORTS[parts.scheme], user, password, tls, options.get("cafile"))


def properties(packet: int, **given: Any) -> Properties:
    made: Properties = Properties(packet)  # type: ignore[no-untyped-call]
    for name, value in given.items():
        setattr(made, name, value)
    return made


class MqttLink:
    """A client that is connected until it is lost. Of one event loop."""

    def __init__(self, address: Server, client_id: str, received: Received) -> None:
        self._loop = asyncio.get_running_loop()
        self._address, self._received = address, received
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[list[ReasonCode]]] = {}
        self.why = ConnectionEnded(f"{address!r}: the connection was lost")
        self._slots = asyncio.Semaphore()
        """The number of further unacknowledged messages that the broker receives: the library does not look."""
        self._dropped = False
        self.lost = asyncio.Event()
        self.session_present = False
        self.told: dict[str, Any] = {}
        """The properties that the broker has told of itself, by name."""
        client = self._client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(0)  # no limit of its own
        if address.user is not None:
            client.username_pw_set(address.user, address.password)
        client.on_socket_open = lambda _c, _u, _socket: self._is_wanted()

    @classmethod
    async def open(
        cls,
        address: Server,
        *,
        patience: float,
        client_id: str = "",
        keep: int = 0,
        receive: int = MOST_IN_FLIGHT,
        received: Received = lambda connection, message: None,
    ) -> MqttLink:
        """Connect. Raises `ConnectionEnded` or another `OSError`, and `TimeoutError` when the broker does not answer.

        client_id: of a session that is gone on with; without one the session is new, and ends with the connection.
        keep: for how many seconds the broker keeps the session when the connection has ended.
        receive: how many messages it sends without an acknowledgement.
        """
        made, thread = cls(address, client_id, received), WorkerThread("retrysafe-mqtt-connecting")
        try:
            async with asyncio.timeout(patience):
                await thread.submit(partial(made._connect, patience, bool(client_id), keep, receive))
                made._attach()
                await made._connected
        except BaseException:
            made._drop()
            raise
        finally:
            thread.end()
        return made

    def _connect(self, patience: float, resumed: bool, keep: int, receive: int) -> None:
        client, address = self._client, self._address
        if address.tls:
            client.tls_set_context(ssl.create_default_context(cafile=address.cafile))
        client.connect_timeout = patience
        asked = properties(PacketTypes.CONNECT, SessionExpiryInterval=keep, ReceiveMaximum=receive)
        try:
            client.connect(address.host, address.port, _KEEPALIVE, clean_start=not resumed, properties=asked)
        finally:
            if self._dropped:
                self._close_socket()

    def _is_wanted(self) -> None:
        """Abort a connect that timed out, so that it cannot take over the session later."""
        if self._dropped:
            raise ConnectionEnded(f"{self._address!r}: nobody waits for the connection any more")

    def _attach(self) -> None:
        client, loop = self._client, self._loop
        client.on_connect = lambda _c, _u, flags, code, told: self._tell(
            self._is_connected, flags.session_present, code, told
        )
        client.on_disconnect = lambda _c, _u, _flags, code, _told: self._tell(self._on_end, code)
        client.on_publish = lambda _c, _u, mid, code, _told: self._tell(self._on_answer, mid, [code])
        client.on_subscribe = lambda _c, _u, mid, codes, _told: self._tell(self._on_answer, mid, codes)
        client.on_unsubscribe = lambda _c, _u, mid, codes, _told: self._tell(self._on_answer, mid, codes)
        client.on_message = lambda _c, _u, message: self._tell(self._received, self, message)
        client.on_socket_register_write = lambda _c, _u, connected: loop.add_writer(connected, client.loop_write)
        client.on_socket_unregister_write = self._has_written
        client.on_socket_close = self._is_closed
        connected: Any = client.socket()
        if connected is None:
            raise self.why
        try:
            loop.add_reader(connected, self._read)
        except NotImplementedError as error:
            raise ConfigurationError(
                f"MQTT needs an event loop that watches sockets, which {type(loop).__name__} does not: use "
                "asyncio.SelectorEventLoop, the only one on Windows that does."
            ) from error
        if client.want_write():
            loop.add_writer(connected, client.loop_write)
        self._look()

    def _has_written(self, _client: Client, _data: Any, connected: Any) -> None:
        self._loop.remove_writer(connected)

    def _is_closed(self, _client: Client, _data: Any, connected: Any) -> None:
        self._loop.remove_reader(connected)

    # ------------------------------------------------------------ what can be asked of it

    @property
    def is_open(self) -> bool:
        """True if it has not been lost, as far as anyone knows."""
        return not self.lost.is_set()

    @property
    def _sending(self) -> Client:
        if not self.is_open:
            raise self.why
        return self._client

    async def publish(
        self, topic: str, payload: bytes, told: Properties | None = None, *, retain: bool = False
    ) -> asyncio.Future[list[ReasonCode]]:
        """Send a message at QoS 1; the reason code of its acknowledgement. The caller cancels it in the end.

        The library's own ``is_published`` is true for a message that the broker has refused. Raises `ConnectionEnded`.
        """
        if self._slots.locked():
            await self.first_of(asyncio.ensure_future(self._slots.acquire()))
        else:
            await self._slots.acquire()
        try:
            info = self._sending.publish(topic, payload, qos=1, retain=retain, properties=told)
            answer = self._await_answer(info.mid, info.rc)
        except BaseException:
            self._slots.release()
            raise
        answer.add_done_callback(lambda _: self._slots.release())
        return answer

    async def subscribe(self, filters: Iterable[str], *, retained: bool) -> None:
        """Subscribe at QoS 1. Raises `ConfigurationError` when the broker does not allow it."""
        asked = SubscribeOptions(qos=1, retainHandling=0 if retained else _UNWISHED_RETAINED)
        names = list(filters)
        code, mid = self._sending.subscribe([(one, asked) for one in names])
        answers = await self.first_of(self._await_answer(mid, code))
        for name, answer in zip(names, answers, strict=True):
            if answer.value != 1:
                said = str(answer) if answer.value >= _FAILED else "it gives QoS 0 only"
                raise ConfigurationError(f"The MQTT broker refuses a subscription to {name!r}: {said}.")

    async def unsubscribe(self, topic: str) -> None:
        """End a subscription. Raises `ConnectionEnded`."""
        code, mid = self._sending.unsubscribe(topic)
        await self.first_of(self._await_answer(mid, code))

    async def flush(self, patience: float) -> None:
        """Wait until the broker has read all that was sent. Raises `ConnectionEnded` or `TimeoutError`."""
        async with asyncio.timeout(patience):
            await self.unsubscribe(_NOTHING)

    def acknowledge(self, mid: int) -> None:
        """Tell the broker that a message is settled."""
        if self.is_open:
            self._client.ack(mid, 1)

    async def first_of(self, waiting: asyncio.Future[Any]) -> Any:
        """The result of something, unless the connection is lost before. Raises `ConnectionEnded`."""
        lost = asyncio.create_task(self.lost.wait())
        try:
            await asyncio.wait({lost, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise self.why
            return waiting.result()
        finally:
            lost.cancel()
            waiting.cancel()

    async def close(self, patience: float, *, keep: int | None = None) -> None:
        """Hang up when the broker has read all, at the latest after so many seconds.

        Closing a socket with something unread in it throws away what the broker has not read: settled messages
        would come again.

        keep: how long the session is kept now; by default as long as was said when it was opened.
        """
        with suppress(*LOST):
            await self.flush(patience)
        told = None if keep is None else properties(PacketTypes.DISCONNECT, SessionExpiryInterval=keep)
        with suppress(*LOST):
            self._sending.disconnect(properties=told)
            async with asyncio.timeout(patience):
                await self.lost.wait()
        self._drop()

    def _drop(self) -> None:
        """End it, whatever the broker says."""
        self._dropped = True
        connected: Any = self._client.socket()
        if connected is not None and connected.fileno() >= 0:
            self._loop.remove_reader(connected)
            self._loop.remove_writer(connected)
        self._close_socket()
        self._end()

    def _close_socket(self) -> None:
        connected: Any = self._client.socket()
        if connected is not None:
            connected.close()

    # ------------------------------------------------------------ what the event loop does

    def _read(self) -> None:
        try:
            while self._client.loop_read() == MQTTErrorCode.MQTT_ERR_SUCCESS and self._has_decrypted():
                pass
        except Exception as error:  # noqa: BLE001 - the library raises whatever its parsing does
            self.why = ConnectionEnded(f"{self._address!r} sent what is no MQTT: {type(error).__name__}")
            self._drop()

    def _has_decrypted(self) -> bool:
        """Tell whether there is something to read that the event loop does not see."""
        connected: Any = self._client.socket()
        return isinstance(connected, ssl.SSLSocket) and connected.pending() > 0

    def _look(self) -> None:
        if self.is_open:
            self._client.loop_misc()
            self._loop.call_later(_LOOK, self._look)

    # ------------------------------------------------------------ what the library tells

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call it in its turn, outside the library's call."""
        self._loop.call_soon(function, *arguments)

    def _is_connected(self, session_present: bool, code: ReasonCode, told: Properties | None) -> None:
        if self._connected.done():
            return
        if code.value >= _FAILED:
            self._connected.set_exception(ConnectionEnded(f"{self._address!r} refuses: {code}", code.value))
            return
        self.session_present, self.told = session_present, told.json() if told else {}  # type: ignore[no-untyped-call]
        self._slots = asyncio.Semaphore(self.told.get("ReceiveMaximum", MOST_IN_FLIGHT))
        self._connected.set_result(None)

    def _on_end(self, code: ReasonCode) -> None:
        if code.value > _FAILED:  # the library says "unspecified" when it has lost the connection itself
            self.why = ConnectionEnded(f"{self._address!r}: {code}", code.value)
        self._end()

    def _end(self) -> None:
        self.lost.set()
        if not self._connected.done():
            self._connected.set_exception(self.why)
            self._connected.exception()  # the waiter may have gone

    def _await_answer(self, mid: int | None, code: int) -> asyncio.Future[list[ReasonCode]]:
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            self.lost.set()  # a caller that asks again at once would not let the loop tell of it
            raise ConnectionEnded(f"{self._address!r}: the connection was lost")
        answer = self._answers[mid] = self._loop.create_future()
        answer.add_done_callback(lambda _: self._answers.pop(mid, None))
        return answer

    def _on_answer(self, mid: int, codes: list[ReasonCode]) -> None:
        answer = self._answers.get(mid)
        if answer is not None and not answer.done():
            answer.set_result(codes)


Received = Callable[[MqttLink, MQTTMessage], None]
"""Is called in the event loop with each message that comes, and the connection that it came by."""
