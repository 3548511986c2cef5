"""Redis behind its clients, on one server, a cluster and Sentinel."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrysafe.backends.registry import connect
from retrysafe.testing.harness import AsyncHarness, SyncHarness
from tests.laboratory.specification import Traits
from tests.stores.harnesses.base import RESTORED, RUNS, TWICE, Loss, Settings, StoreHarness


def redis_url(topology: str = "") -> str:
    """The URL of the test Redis; every worker of a run has one of its databases, but that a cluster has only one."""
    url = os.environ[f"RETRYSAFE_TEST_REDIS{topology}"]
    number = int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{os.getpid()}").removeprefix("gw"))
    return url if topology == "_CLUSTER" else f"{url.removesuffix('/0')}/{1 + number % 15}"


def redis_sync(topology: str = "") -> Callable[[Path], SyncHarness]:
    return lambda path: SyncHarness(connect(redis_url(topology)))


def redis_async(topology: str = "") -> Callable[[Path], AsyncHarness]:
    return lambda path: AsyncHarness(connect(redis_url(topology)))


@dataclass
class ClientHarness(SyncHarness):
    """A sync harness on a client of the user's, which stays open when the backend is closed."""

    client: Any

    def close(self) -> None:
        super().close()
        assert self.client.ping()
        self.client.close()


@dataclass
class AsyncClientHarness(AsyncHarness):
    """The same for async code."""

    client: Any

    def close(self) -> None:
        self.loop.run_until_complete(self.backend.aclose())
        assert self.loop.run_until_complete(self.client.ping())
        self.loop.run_until_complete(self.client.aclose())
        self.loop.close()


def redis_client(path: Path) -> SyncHarness:
    import redis

    client = redis.Redis.from_url(redis_url(), decode_responses=True)  # which would spoil a record
    return ClientHarness(connect(client), client)


def redis_async_client(path: Path) -> AsyncHarness:
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(redis_url(), decode_responses=True)
    return AsyncClientHarness(connect(client), client)


def _first_node() -> tuple[str, int]:
    host, _, port = redis_url("_CLUSTER").partition("//")[2].partition(",")[0].partition(":")
    return host, int(port)


def redis_cluster_client(path: Path) -> SyncHarness:
    import redis

    host, port = _first_node()
    client = redis.RedisCluster(host, port)
    return ClientHarness(connect(client), client)


def redis_async_cluster_client(path: Path) -> AsyncHarness:
    import redis.asyncio

    client = redis.asyncio.RedisCluster(*_first_node())
    return AsyncClientHarness(connect(client), client)


HARNESS = StoreHarness(
    executors={
        "redis": ("redis", redis_sync()),
        "redis async": ("redis", redis_async()),
        "redis.Redis": ("redis", redis_client),
        "redis.asyncio.Redis": ("redis", redis_async_client),
        "redis cluster": ("redis-cluster", redis_sync("_CLUSTER")),
        "redis cluster async": ("redis-cluster", redis_async("_CLUSTER")),
        "redis.RedisCluster": ("redis-cluster", redis_cluster_client),
        "redis.asyncio.RedisCluster": ("redis-cluster", redis_async_cluster_client),
        "redis sentinel": ("redis-sentinel", redis_sync("_SENTINEL")),
        "redis sentinel async": ("redis-sentinel", redis_async("_SENTINEL")),
    },
    drivers=("redis", "redis async"),
    urls={"redis": ("redis", lambda folder: redis_url())},
    on_other_versions={"redis": ("redis", "redis async")},
    proxied={
        "redis": (redis_url, redis_url),
        "redis async": (redis_url, redis_url),
    },
    traits={
        "redis": Traits(skew=1_000, vanishing=True),
    },
    settings={
        "redis": Settings(
            "a replica, a `maxmemory-policy` other than noeviction with `maxmemory` set",
            "such a policy without `maxmemory`, no AOF, `appendfsync no`, lagging replicas, hidden settings",
        ),
    },
    losses={
        "redis": (
            Loss("`redis-server` is killed, `appendfsync always`", "nothing that was acknowledged", "–", "–"),
            Loss(
                "the same, `everysec`",
                "as a rule nothing; while the disk is slow, up to two seconds",
                RUNS,
                TWICE,
            ),
            Loss("the machine loses power, `everysec`", "the last second or two", RUNS, TWICE),
            Loss("snapshots only, or no persistence", "all since the last snapshot; everything", RUNS, TWICE),
            Loss(
                "failover to a replica, also in a cluster",
                "what the replica had not received: **a claim**, then two attempts run at once and the first gets "
                "`LeaseLost` at its end; **a completion**, then the operation runs again",
                RUNS,
                TWICE,
            ),
            Loss("records are evicted, flushed or deleted", "those keys", RUNS, TWICE),
            Loss("a backup is restored", RESTORED, RUNS, TWICE),
            Loss(
                "the network between you and Redis is cut",
                "nothing; leases lapse",
                "another attempt may take over, with the same derived keys",
                "*unknown*",
            ),
        ),
    },
)
