"""The backend of a map of stores, and its clients, which open those of a shard when they are first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.checks import Examination, no_facts
from retrysafe.backends.commands import Commands, naming
from retrysafe.backends.driver import arun, run
from retrysafe.backends.registry import apart
from retrysafe.backends.sharded.store import OnShard, ShardedStore, ToShard
from retrysafe.backends.spec import StoreAccess, WithoutTransactions
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Sharded

EXAMINATION = Examination((), no_facts)
Shards = Mapping[str, Backend]


def of_map(given: Sharded) -> Backend:
    """The backend of a map. Raises `ConfigurationError` for a store that cannot be a shard."""
    named = {**(given.other.shards if given.other else {}), **given.shards}
    shards = {name: apart(store, "sharded()") for name, store in named.items()}
    every = shards.values()
    sync, asynchronous = all(shard.serves_sync for shard in every), all(shard.serves_async for shard in every)
    address = f"sharded({', '.join(f'{name}={shard.address}' for name, shard in shards.items())})"
    access = StoreAccess(
        address,
        sync=(lambda: ShardedClient(shards, Backend.new_client)) if sync else None,
        asynchronous=(lambda: AsyncShardedClient(shards, Backend.new_aclient)) if asynchronous else None,
        heartbeat=lambda: ShardedClient(shards, Backend.heartbeat_client),
        aheartbeat=lambda: AsyncShardedClient(shards, Backend.heartbeat_aclient),
        no_transactions=next((shard.access.no_transactions for shard in every if shard.access.no_transactions), ""),
    )
    return ShardedBackend(ShardedStore(given, shards), access)


class ShardedBackend(Backend):
    """A map of stores. Each shard is checked when it is first asked, so that one that is away stops its own keys only.

    A claim with a transaction is one of its key's shard.
    """

    is_sharded = True

    def __init__(self, store: ShardedStore, access: StoreAccess) -> None:
        super().__init__(store, access)
        self.shards = store.shards
        self._places = store.places
        for shard in self.shards.values():
            shard.warnings = self.warnings

    @property
    def commands(self) -> Commands:
        return naming("")  # commands take a shard at a time

    def of(self, key: bytes) -> Backend:
        home, *others = self._places(key)
        if others:
            raise ConfigurationError(
                f"The key moves between the shards {home} and {others[0]}, and no transaction holds both. Nothing was "
                "run. Let effects='transactional' rest for such keys until the move is over, or claim them with a "
                "lease: effects='keyed' or 'external'."
            )
        return _prepare(self.shards[home])

    def close(self) -> None:
        super().close()
        for shard in self.shards.values():
            shard.close()

    async def _aclose(self) -> None:
        await super()._aclose()
        for shard in self.shards.values():
            await shard.aclose()


class ShardedClient(WithoutTransactions):
    """Performs requests on clients of its own, one for each shard."""

    def __init__(self, shards: Shards, make: Callable[[Backend], Any]) -> None:
        self._shards = shards
        self._make = make
        self._made: dict[str, Any] = {}

    def _of(self, name: str) -> Any:
        return self._made.get(name) or self._made.setdefault(name, self._make(_prepare(self._shards[name])))

    def __call__(self, request: Any, /) -> Any:
        if not isinstance(request, ToShard | OnShard):
            return run(request(), self, patience=0)  # the driver around this one is patient
        client = self._of(request.shard)
        self._shards[request.shard].check(client)
        return client(request.request) if isinstance(request, ToShard) else run(request.program(), client, patience=0)

    def close(self) -> None:
        for client in self._made.values():
            client.close()


class AsyncShardedClient(ShardedClient):
    """`ShardedClient` for async code."""

    async def __call__(self, request: Any, /) -> Any:
        if not isinstance(request, ToShard | OnShard):
            return await arun(request(), self, patience=0)
        client = self._of(request.shard)
        await self._shards[request.shard].acheck(client)
        if isinstance(request, ToShard):
            return await client(request.request)
        return await arun(request.program(), client, patience=0)

    async def aclose(self) -> None:
        for client in self._made.values():
            await client.aclose()

    def abandon(self) -> None:
        for client in self._made.values():
            client.abandon()


def _prepare(shard: Backend) -> Backend:
    """Make the tables of a shard that makes them itself."""
    if shard.migrates_itself:
        shard.tables.prepare()
        shard.tables.provide("steps")
        shard.migrates_itself = False
    return shard
