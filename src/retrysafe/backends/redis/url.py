"""Redis URLs: one server, servers behind Sentinel, or a cluster; and redis-py's clients for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from redis.backoff import FullJitterBackoff, NoBackoff
from redis.retry import Retry

from retrysafe.backends.redis import async_client as async_masters
from retrysafe.backends.redis import client as sync_masters
from retrysafe.backends.redis.async_client import SILENCE, AsyncMasters
from retrysafe.backends.redis.client import MOST_CONNECTIONS
from retrysafe.backends.urls import url_options
from retrysafe.errors import ConfigurationError

_CLUSTER_TRIES = 3
_PORTS = {"": 6379, "cluster": 6379, "sentinel": 26379}


def _flag(text: str) -> bool:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]


_PARSERS: dict[str, Callable[[str], Any]] = {
    "db": int,
    "socket_timeout": float,
    "socket_connect_timeout": float,
    "max_connections": int,
    "username": str,
    "password": str,
    "client_name": str,
    "protocol": lambda text: {"2": 2, "3": 2}[text],  # replies are read as they are, so that both are as good
}
_TLS: dict[str, Callable[[str], Any]] = {
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": str,
    "ssl_check_hostname": _flag,
}
_SENTINEL: dict[str, Callable[[str], Any]] = {"sentinel_username": str, "sentinel_password": str}


class Address(NamedTuple):
    """A URL, read."""

    topology: str
    hosts: list[tuple[str, int]]
    path: str | None
    service: str
    options: dict[str, Any]
    most_connections: int
    sentinel_options: dict[str, Any]


def parse(url: str, silence: float = SILENCE) -> Address:
    """Read a URL; refuse what it cannot have. A server may be silent for ``silence`` seconds, or as the URL says."""
    parts = urlsplit(url)
    scheme, _, topology = parts.scheme.partition("+")
    tls = scheme in ("rediss", "valkeys")
    userinfo, _, netloc = parts.netloc.rpartition("@")
    known = _PARSERS | (_TLS if tls else {}) | (_SENTINEL if topology == "sentinel" else {})
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    url_options(given, tuple(known), f"{parts.scheme}://")
    options = {name: _parse(url, name, value, known[name]) for name, value in given.items()}
    username, _, password = userinfo.partition(":")
    for name, value in (("username", username), ("password", password)):
        if value:
            options.setdefault(name, unquote(value))
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = ""
    unix = None
    if scheme == "unix":
        unix, path = unquote(parts.path), []
    elif topology == "sentinel":
        if not path:
            raise ConfigurationError(f"store=: write {parts.scheme}://host:26379,host:26379/service-name/db.")
        service, *path = path
    if path:
        options.setdefault("db", _parse(url, "db", path[0], int))
    if topology == "cluster" and options.pop("db", 0):
        raise ConfigurationError("store=: a Redis cluster has one database, 0.")
    options = {"socket_timeout": silence, "socket_connect_timeout": silence, "protocol": 2} | options
    if tls:
        options["ssl"] = True
    own = {name.removeprefix("sentinel_"): options.pop(name) for name in _SENTINEL if name in options}
    most = options.pop("max_connections", MOST_CONNECTIONS)
    return Address(topology, _hosts(netloc, topology), unix, service, options, most, own)


def _parse(url: str, name: str, value: str, parser: Callable[[str], Any]) -> Any:
    try:
        return parser(value)
    except (ValueError, KeyError) as error:
        raise ConfigurationError(
            f"store=: {name}={value!r} is not possible in a {urlsplit(url).scheme}:// URL."
        ) from error


def _hosts(netloc: str, topology: str) -> list[tuple[str, int]]:
    """``host:port,host:port``; IPv6 addresses stand in brackets."""
    hosts: list[tuple[str, int]] = []
    for part in netloc.split(","):
        host, port = urlsplit(f"//{part}").hostname, urlsplit(f"//{part}").port
        hosts.append((host or "localhost", port or _PORTS[topology]))
    return hosts


def _sentinel_options(address: Address, retry: Any) -> dict[str, Any]:
    taken = {name: value for name, value in address.options.items() if name.startswith(("socket_", "ssl", "protocol"))}
    return {**taken, **address.sentinel_options, "retry": retry}


def _one(address: Address, kind: Any, retry: Any) -> Any:
    host, port = address.hosts[0]
    where = {"host": host, "port": port} if address.path is None else {"unix_socket_path": address.path}
    return kind(**where, **address.options, retry=retry)


def sync(address: Address) -> sync_masters.Masters:
    never = Retry(NoBackoff(), 0)
    if address.topology == "cluster":
        node: Any = redis.cluster.ClusterNode
        nodes = [node(host, port) for host, port in address.hosts]
        retry = Retry(FullJitterBackoff(base=0.05, cap=0.5), _CLUSTER_TRIES)
        make: Any = redis.cluster.RedisCluster
        return sync_masters.cluster(
            lambda: make(startup_nodes=nodes, retry=retry, require_full_coverage=False, **address.options), ours=True
        )
    if address.topology == "sentinel":
        sentinels: Any = redis.sentinel.Sentinel
        sentinel = sentinels(address.hosts, sentinel_kwargs=_sentinel_options(address, never))
        master = sentinel.master_for(address.service, **address.options, retry=never)
        found = sync_masters.one_server(master, ours=True)

        def close() -> None:
            found.close()
            for one in sentinel.sentinels:
                one.close()

        return found._replace(close=close)
    return sync_masters.one_server(_one(address, redis.Redis, never), ours=True)


def asynchronous(address: Address) -> AsyncMasters:
    never = redis.asyncio.retry.Retry(NoBackoff(), 0)
    if address.topology == "cluster":
        nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in address.hosts]
        retry = redis.asyncio.retry.Retry(FullJitterBackoff(base=0.05, cap=0.5), _CLUSTER_TRIES)
        make: Any = redis.asyncio.cluster.RedisCluster
        client = make(startup_nodes=nodes, retry=retry, require_full_coverage=False, **address.options)
        return async_masters.cluster(client, ours=True)
    if address.topology == "sentinel":
        options = _sentinel_options(address, never)
        sentinels: Any = redis.asyncio.sentinel.Sentinel
        sentinel = sentinels(address.hosts, sentinel_kwargs=options)
        master = sentinel.master_for(address.service, **address.options, retry=never)
        return async_masters.one_server(master, ours=True, beside=sentinel.sentinels)
    return async_masters.one_server(_one(address, redis.asyncio.Redis, never), ours=True)
