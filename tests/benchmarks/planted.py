"""Rows that work, break, hang or die, and one that talks to a server."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import services
from benchmarks.rows import FLOOR, OURS, Row, Side, one_by_one

FOLDER = "RETRYSAFE_TEST_PLANTED"
"""Names a folder that shows what a row has done."""


def rows() -> Sequence[Row]:
    """Each kind."""
    pair = {OURS: partial(hashing, 2000), FLOOR: partial(hashing, 200)}
    return [
        Row("planted/works", "a tenth of the work", pair),
        Row("planted/breaks", "", {OURS: partial(broken, "no such server"), FLOOR: partial(hashing, 1)}),
        Row("planted/loses a file", "", {OURS: losing, FLOOR: partial(hashing, 1)}),
        Row("planted/hangs", "", {OURS: hanging, FLOOR: partial(hashing, 1)}),
        Row("planted/dies", "", {OURS: dying, FLOOR: partial(hashing, 1)}),
        Row("planted/needs a service", "", pair, needs=("dynamodb",)),
        Row("planted/a rival is missing", "", {**pair, "rival": partial(broken, "no such rival")}),
        Row(
            "planted/asks",
            "",
            {OURS: partial(asking, 2), FLOOR: partial(asking, 1)},
            needs=("dynamodb",),
            counted=("redis",),
        ),
    ]


@contextmanager
def hashing(times: int) -> Iterator[Side]:
    def work(key: str) -> None:
        for _ in range(times):
            hashlib.sha256(key.encode())

    yield one_by_one(work)


@contextmanager
def broken(why: str) -> Iterator[Side]:
    if why:
        raise RuntimeError(why)
    yield one_by_one(hash)


@contextmanager
def hanging() -> Iterator[Side]:
    try:
        threading.Event().wait()
        yield one_by_one(hash)
    finally:
        Path(os.environ[FOLDER], "taken down").touch()


@contextmanager
def losing() -> Iterator[Side]:
    with Path(tempfile.gettempdir(), "some", "folder", "nowhere.db").open():
        yield one_by_one(hash)


@contextmanager
def dying() -> Iterator[Side]:
    os._exit(7)
    yield one_by_one(hash)


QUESTION = 3_000_000
"""Bytes: more than any buffer on the way takes at once."""


@contextmanager
def asking(times: int) -> Iterator[Side]:
    """Asks so often for each operation, one after the other."""
    parts = urlsplit(services.url("redis"))
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:

        def work(key: str) -> None:
            for _ in range(times):
                connection.sendall(b"?" * QUESTION)
                assert connection.recv(1)

        yield one_by_one(work)


@contextmanager
def answering() -> Iterator[str]:
    """The address of a server that answers a question when it has come whole."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                come = 0
                while data := connection.recv(1 << 20):
                    come += len(data)
                    if come == QUESTION:
                        come = 0
                        connection.sendall(b"!")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
