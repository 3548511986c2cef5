"""Lets time pass in the shards, for tests."""

from __future__ import annotations

from collections.abc import Collection

from retrysafe.backends.registry import specs
from retrysafe.backends.sharded.store import ShardedStore
from retrysafe.backends.time_travel import Aged
from retrysafe.protocol.records import Micros


def age(store: ShardedStore, keys: Collection[bytes], micros: Micros) -> Aged:
    for name, shard in store.shards.items():
        there = [key for key in keys if name in store.places(key)]
        ages = (
            spec.load(function)
            for spec in specs()
            for kind, function in spec.time_travel.items()
            if isinstance(shard.store, spec.load(kind))
        )
        for ask in next(ages)(shard.store, there, micros) if there else ():
            yield store.at(name, ask)
