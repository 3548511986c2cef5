"""Redis, set up wrongly: what it evicts, what it writes down, and its replicas."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from retrysafe.protocol.checks import Severity
from tests.conftest import absent
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Setup
from tests.faults.helpers import until
from tests.faults.redis_servers import COMPILER, Server, WithItsClock

SOUND = ("--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")


def _started(name: str, finds: str, severity: Severity, broken: str, *settings: str) -> Setup:
    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        with closing(server(*settings)) as made:
            yield ["--store", made.url]

    return Setup(broken, f"`redis-server {' '.join(settings)}`", finds, severity, make, name=name)


def server(*settings: str) -> Server:
    """A Redis of the test's own."""
    if shutil.which("redis-server") is None:
        absent("no redis-server")
    return Server(*settings)


@contextmanager
def _replica(ground: Ground) -> Iterator[Arguments]:
    with (
        closing(server(*SOUND)) as master,
        closing(server(*SOUND, "--replicaof", "127.0.0.1", str(master.port))) as made,
    ):
        until(lambda: made.info("replication")["master_link_status"] == "up")
        yield ["--store", made.url]


@contextmanager
def _lagging(ground: Ground) -> Iterator[Arguments]:
    """A replica that waits for its first copy, which the master puts off."""
    with (
        closing(server(*SOUND, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "600")) as master,
        closing(server(*SOUND, "--replicaof", "127.0.0.1", str(master.port))),
    ):
        until(lambda: master.info("replication")["connected_slaves"] == 1)
        yield ["--store", master.url]


@contextmanager
def _ahead(ground: Ground) -> Iterator[Arguments]:
    if shutil.which(COMPILER) is None:
        absent(f"no {COMPILER}")
    with closing(WithItsClock()) as made:
        made.set_clock(90)
        yield ["--store", made.url]


BROKEN = (
    _started(
        "redis-eviction",
        "redis-eviction",
        ERROR,
        "A full server forgets records.",
        *SOUND[:-1],
        "allkeys-lru",
    ),
    _started("redis-persistence", "redis-persistence", WARNING, "A crash forgets everything.", "--appendonly", "no"),
    _started(
        "redis-fsync",
        "redis-persistence",
        WARNING,
        "A crash of the machine forgets what the kernel had not written.",
        *SOUND,
        "--appendfsync",
        "no",
    ),
    Setup("The store is a replica.", "the URL of a replica", "redis-role", ERROR, _replica),
    Setup(
        "A replica is behind its master.",
        "a replica, and `--repl-diskless-sync-delay 600` at its master",
        "redis-replication",
        WARNING,
        _lagging,
    ),
    Setup("The store's clock is ahead.", "a server whose clock is 90 s ahead", "store-clock", WARNING, _ahead),
)

UNMADE: dict[str, dict[str, Any]] = {}
