"""redis-py, sync: scripts by digest, on one server, behind Sentinel, or over a cluster.

Commands are written to redis-py's connections directly. Its own retries are not used: what may be asked
again is decided by the programs, which recognise their lost replies.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisError, ResponseError

from retrysafe.backends.permits import Permits
from retrysafe.backends.redis.requests import Scan, Scanned, Script, Settings
from retrysafe.backends.spec import WithoutTransactions
from retrysafe.errors import ConfigurationError, StoreMisconfigured, StoreUnavailable

MOST_CONNECTIONS = 10
CHECKOUT = 10.0
"""Seconds to wait for one of our connections to become free."""


def all_lent() -> StoreUnavailable:
    return StoreUnavailable(f"no connection became free within {CHECKOUT:.0f} seconds", unsent=True)


Words = tuple[Any, ...]
Reply = Any
"""A reply of Redis: integers, bytes, lists, None, or an error as a value."""


@lru_cache(maxsize=64)
def digest(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def by_digest(script: Script) -> Words:
    """The command that runs a script which the server knows."""
    return ("EVALSHA", digest(script.source), len(script.keys), *script.keys, *script.args)


def by_source(script: Script) -> Words:
    """The command that runs a script, and makes the server know it."""
    return ("EVAL", script.source, len(script.keys), *script.keys, *script.args)


_REDIRECTIONS = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
_UNDONE = ("LOADING", "BUSY", "MASTERDOWN", "READONLY", "NOREPLICAS", "OOM", "MISCONF")
"""Error codes after which nothing was executed."""
_TRANSIENT = ("LOADING", "BUSY", "MASTERDOWN", "READONLY", "TRYAGAIN", "CLUSTERDOWN")
"""Those that may pass by themselves: a restart, a failover, a slot that moves."""

_CREDENTIALS = "Correct the user and the password in store=."
_REFUSED = {
    "NOAUTH": _CREDENTIALS,
    "WRONGPASS": _CREDENTIALS,
    "NOPERM": "Give the user of store= the ACL that the guide to Redis lists, on ~retrysafe:* and &retrysafe*.",
}
"""Errors by which Redis refuses a user until a setting is corrected, with the remedy."""


def not_connected(error: Exception) -> StoreUnavailable:
    text = str(error) or type(error).__name__
    remedy = _REFUSED.get(code_of(error) or "")
    if "called without any password" in text:
        remedy = "The server has no password: leave it out of store=."
    elif "DB index" in text:
        remedy = "Name a database that the server has in store= (redis://host:6379/0), or raise its setting databases."
    elif "SELECT is not allowed in cluster mode" in text:
        remedy = "The server belongs to a cluster, which has one database: write redis+cluster://host:port."
    if remedy is None:
        return StoreUnavailable(text, unsent=True)
    return StoreMisconfigured(f"{text.rstrip('.?')}. {remedy}", unsent=True)


def code_of(reply: Reply) -> str | None:
    """The code of an error reply, None if it is none; redis-py strips the code of errors that have classes."""
    if not isinstance(reply, Exception):
        return None
    named = _CODES.get(type(reply).__name__)
    return named or str(reply).partition(" ")[0]


_CODES = {
    "NoScriptError": "NOSCRIPT",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
    "AuthenticationError": "NOAUTH",
}


def is_redirection(reply: Reply) -> bool:
    return code_of(reply) in _REDIRECTIONS


def answer_of(reply: Reply) -> Reply:
    """The reply, unless it is an error: then the store is unavailable."""
    code = code_of(reply)
    if code in ("MOVED", "ASK"):  # in a known cluster they have been followed
        raise ConfigurationError("store=: the server belongs to a cluster. Write redis+cluster://host:port.")
    if code in _REFUSED:
        raise StoreMisconfigured(f"{str(reply).rstrip('.')}. {_REFUSED[code]}", unsent=True) from None
    if code is not None:
        raise StoreUnavailable(str(reply), unsent=code in _UNDONE, transient=code in _TRANSIENT) from None
    return reply


# ---------------------------------------------------------------- what needs several commands


def page_commands(request: Scan, cursor: int) -> Words:
    return ("SCAN", cursor, "MATCH", request.pattern, "COUNT", request.size)


def place_of(cursor: str | None, masters: Sequence[str]) -> tuple[str, int]:
    """Find the master and the cursor that a scan has come to; a master that is gone is passed over."""
    name, _, inside = (cursor or "").rpartition("/")
    here = [master for master in sorted(masters) if master >= name]
    if not here:
        raise StoreUnavailable("The cluster has changed during the scan: begin again.", unsent=True)
    return here[0], int(inside) if here[0] == name and inside else 0


def cursor_after(name: str, inside: int, masters: Sequence[str]) -> str | None:
    """Return the cursor for the next page of a scan; None at its end."""
    if inside:
        return f"{name}/{inside}"
    later = [master for master in sorted(masters) if master > name]
    return f"{later[0]}/0" if later else None


def settings_commands(request: Settings) -> list[Words]:
    return [("INFO",), *(("CONFIG", "GET", name) for name in request.names)]


def settings_of(replies: Sequence[Reply]) -> dict[str, str]:
    info, *configured = replies
    answer_of(info)
    found: dict[str, str] = {}
    for line in bytes(info).decode(errors="replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name] = value
    for pairs in configured:
        if isinstance(pairs, Mapping):
            found |= {name.decode(): value.decode() for name, value in pairs.items()}
        elif isinstance(pairs, list):
            found |= {pairs[i].decode(): pairs[i + 1].decode() for i in range(0, len(pairs), 2)}
    return found


# ---------------------------------------------------------------- the sync client


def perform(node: redis.Redis, commands: Sequence[Words]) -> list[Reply]:
    """Send commands together and read their replies, errors as values.

    A connection that is left in the middle is hung up: the next one to use it would read our replies.
    """
    pool: Any = node.connection_pool
    try:
        connection = pool.get_connection()
    except (RedisError, OSError) as error:
        raise not_connected(error) from error
    whole = False
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        replies = [_reply(connection) for _ in commands]
        whole = not any(code_of(reply) == "READONLY" for reply in replies)  # a master no more: connect to the new one
        return replies
    except (RedisError, OSError) as error:
        raise StoreUnavailable(str(error) or type(error).__name__) from error
    finally:
        if not whole:
            connection.disconnect()
        pool.release(connection)


def _run_on(node: redis.Redis, scripts: Sequence[Script]) -> list[Reply]:
    """Run scripts together: by their digests, then by their sources those that the server does not know."""
    replies = perform(node, [*map(by_digest, scripts)]) if scripts else []
    unknown = [place for place, reply in enumerate(replies) if code_of(reply) == "NOSCRIPT"]
    again = perform(node, [by_source(scripts[place]) for place in unknown]) if unknown else []
    for place, reply in zip(unknown, again, strict=True):
        replies[place] = reply
    return replies


def _reply(connection: Any) -> Reply:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


class Masters(NamedTuple):
    """The servers to send requests to: one, which may be found by Sentinel, or the masters of a cluster."""

    of_key: Callable[[bytes], redis.Redis]
    all: Callable[[], dict[str, redis.Redis]]
    elsewhere: Callable[[Script], Reply] | None
    """Runs a script where a redirection leads, or after its node could not be reached; None: there is one server."""
    close: Callable[[], None]


def one_server(node: redis.Redis, *, ours: bool) -> Masters:
    """A server of its own, which may be found by Sentinel."""
    return Masters(lambda key: node, lambda: {"": node}, None, node.close if ours else lambda: None)


def cluster(make: Callable[[], RedisCluster], *, ours: bool) -> Masters:
    """A cluster; ``make`` asks it for its nodes, so it is called at the first use."""
    made: list[Any] = []
    making = threading.Lock()

    def client() -> Any:
        with making:
            if not made:
                made.append(_ask(make))
        return made[0]

    def of_key(key: bytes) -> redis.Redis:
        found: redis.Redis = _ask(lambda: client().get_redis_connection(client().get_node_from_key(key)))
        return found

    def everyone() -> dict[str, redis.Redis]:
        found: dict[str, redis.Redis] = _ask(
            lambda: {node.name: client().get_redis_connection(node) for node in client().get_primaries()}
        )
        return found

    def elsewhere(script: Script) -> Reply:
        """redis-py follows redirections, and learns from them; a script may so be run twice, as after a lost reply."""
        try:
            return client().execute_command(*by_source(script), NEVER_DECODE=True)
        except ResponseError as error:
            return error
        except (RedisError, OSError) as error:
            raise StoreUnavailable(str(error)) from error

    return Masters(of_key, everyone, elsewhere, lambda: made[0].close() if ours and made else None)


def _ask(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (RedisError, OSError) as error:
        raise not_connected(error) from error


class RedisClient(WithoutTransactions):
    """Requests on connections that are lent one at a time; safe to use from many threads."""

    def __init__(self, masters: Masters, most_connections: int | None = None) -> None:
        self._masters = masters
        self._permits = None if most_connections is None else Permits(most_connections)

    def __call__(self, request: Script | Scan | Settings, /) -> Any:
        with self._turn():
            if isinstance(request, Scan):
                return self._scan(request)
            if isinstance(request, Settings):
                commands = settings_commands(request)
                return [settings_of(perform(node, commands)) for node in self._masters.all().values()]
            return answer_of(self._run(request))

    def _turn(self) -> AbstractContextManager[None]:
        if self._permits is None:
            return nullcontext()
        return self._permits.held(CHECKOUT, all_lent)

    def _run(self, script: Script) -> Reply:
        elsewhere = self._masters.elsewhere
        try:
            node = self._masters.of_key(script.keys[0])
            reply = _run_on(node, [script])[0]
        except StoreUnavailable as error:
            if elsewhere is None or not error.unsent:
                raise
            return elsewhere(script)
        return elsewhere(script) if elsewhere is not None and is_redirection(reply) else reply

    def _scan(self, request: Scan) -> Scanned:
        masters = self._masters.all()
        name, inside = place_of(request.cursor, list(masters))
        node = masters[name]
        after, keys = answer_of(perform(node, [page_commands(request, inside)])[0])
        keys = list(dict.fromkeys(keys))
        if request.lasting and keys:
            left = perform(node, [("PTTL", key) for key in keys])
            keys = [key for key, milliseconds in zip(keys, left, strict=True) if milliseconds == -1]
        scripts = [request.script._replace(keys=(key,)) for key in keys]
        replies = _run_on(node, scripts)
        moved = self._masters.elsewhere
        if moved is not None:
            replies = [
                moved(one) if is_redirection(reply) else reply for one, reply in zip(scripts, replies, strict=True)
            ]
        found = [(key, answer_of(reply)) for key, reply in zip(keys, replies, strict=True)]
        return Scanned(found, cursor_after(name, int(after), list(masters)))

    def close(self) -> None:
        self._masters.close()
