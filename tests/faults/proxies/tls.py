"""TLS in front of a server that has none: what comes by it is encrypted, and its certificate can be checked."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import trustme

_ASKED_FOR = bytes.fromhex("0000000804d2162f")
"""A PostgreSQL client's request for TLS; asyncpg and psycopg both send it before anything else."""


class Front(NamedTuple):
    """The address that it listens on, and the certificate to trust."""

    port: int
    cafile: str

    def url(self, of: str, scheme: str, **options: str) -> str:
        """The URL of the server behind it, by TLS."""
        parts = urlsplit(of)
        user = "" if parts.username is None else f"{parts.username}:{parts.password or ''}@"
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return parts._replace(scheme=scheme, netloc=f"{user}localhost:{self.port}", query=query).geturl()


@contextmanager
def fronted(url: str, folder: Path, *, upgrades: bool = False) -> Iterator[Front]:
    """TLS in front of the server of a URL. ``upgrades``: the client asks for it first, as PostgreSQL's does."""
    authority, parts = trustme.CA(), urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever, daemon=True)
    serving.start()

    async def serve(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            if upgrades:
                assert await client.readexactly(len(_ASKED_FOR)) == _ASKED_FOR
                answers.write(b"S")
                await answers.start_tls(context)
            server, asked = await asyncio.open_connection(parts.hostname, parts.port)
            await asyncio.gather(_pass(client, asked), _pass(server, answers))

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(serve, "localhost", 0, ssl=None if upgrades else context)

    async def stop() -> None:
        listening.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    listening = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    try:
        yield Front(listening.sockets[0].getsockname()[1], str(folder / "ca.pem"))
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        serving.join(10)
        loop.close()


async def _pass(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                to.write(data)
                await to.drain()
    finally:
        to.close()
