"""Shards: records spread over named stores by the hash of their key."""

from __future__ import annotations

from typing import Any

from retrysafe.backends.spec import BackendSpec
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Sharded

BACKEND = BackendSpec(
    package=__name__,
    title="shards of these",
    stores=(),
    time_travel={"store:ShardedStore": "time_travel:age"},
    schemes={},
    objects={"retrysafe.protocol.records:Sharded": "opening:of_map"},
    checks={"sharded": "opening:EXAMINATION"},
    steps={"sharded": "steps:ShardedSteps"},
)


def sharded(*, moving_to: Sharded | None = None, moved_from: Sharded | None = None, **stores: Any) -> Sharded:
    """A store for ``store=`` that spreads its keys over named ones: ``sharded(east="postgresql://…", west=…)``.

    The name decides which keys a store gets; another store under the name is taken for the same one, with its records.
    Each takes what ``store=`` takes, but for ``memory://`` and `layered`. A claim with a transaction is one of the
    key's store. Quotas are refused, for the keys of a scope lie in all of them.

    To change the names without forgetting a key, deploy twice: first the old map with ``moving_to`` the new one to
    every process, then the new one with ``moved_from`` the old one. Both look for a key's record in both places. The
    new map alone follows when no record is left where the old one alone has it.

    Raises `ConfigurationError` for no stores, and for a name that is of two stores.
    """
    other = moving_to or moved_from
    known = other.shards if other else {}
    if not stores or (moving_to and moved_from) or (other and other.other):
        raise ConfigurationError("sharded(): name the stores, and at most one other map: moving_to= or moved_from=.")
    if twice := [name for name in stores if stores[name] != known.get(name, stores[name])]:
        raise ConfigurationError(
            f"sharded(): {twice[0]} is of two stores. A store that replaces another has a new name."
        )
    return Sharded(stores, other)
