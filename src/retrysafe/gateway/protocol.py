"""HTTP/1.1 from clients: uvicorn's protocol, made to read every message as far as it goes and no further."""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Protocol(HttpToolsProtocol):
    """Ignores offers to upgrade but for websockets, which a server may (RFC 9110, 7.8), and trailers.

    llhttp takes a request that offers an upgrade for ended with its head: its body would be the next request on the
    connection, one that the client has never made. So the head is read again without the offer. Trailers would become
    fields of a request that is already being served.
    """

    _in_head = False
    _offer: tuple[tuple[bytes, bytes], ...] = ()

    def data_received(self, data: bytes) -> None:
        """Read what came, as one message after the other."""
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._unread(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _unread(self, data: bytes) -> bytes:
        """Have it parsed; what remains is to be parsed anew."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as ended:
            if self.parser.get_method() == b"CONNECT":  # which has no body: what follows is for a tunnel
                return b""
            return self._head_without_offer() + data[ended.args[0] :]
        return b""

    def _head_without_offer(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % line for line in self.headers if line[0] != b"upgrade"]
        offers = [line for line in self.headers if line[0] == b"upgrade"]
        self._offer = tuple(offers) if any(b"websocket" in value.lower() for _, value in offers) else ()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does: it closes by itself
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or of the trailers."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The application may begin. Of offers it sees one of a websocket, which waits for an answer."""
        self._in_head = False
        tunnel = self.parser.get_method() == b"CONNECT"
        if self.parser.should_upgrade() and not tunnel:
            return
        self.headers += self._offer
        self._offer = ()
        super().on_headers_complete()
        if tunnel:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The body is whole, unless the message has to be read again."""
        if not self.parser.should_upgrade() or self.parser.get_method() == b"CONNECT":
            super().on_message_complete()
