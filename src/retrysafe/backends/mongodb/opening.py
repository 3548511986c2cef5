"""Backends on MongoDB, from a URL, a client of PyMongo or a database of one; and sessions that are joined."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri

from retrysafe.backends import identity
from retrysafe.backends.backend import Backend
from retrysafe.backends.mongodb.client import AsyncExecutor, AsyncMongodbClient, Executor, MongodbClient, wants_restart
from retrysafe.backends.mongodb.store import MongodbStore
from retrysafe.backends.spec import Joining, StoreAccess, refuse_kind
from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError

DATABASE, COLLECTION = "retrysafe", "retrysafe_records"
"""The place of records, if the URL or the client names no other."""
TIMEOUT = 5000
"""Milliseconds for one call, with PyMongo's own repetition of it, unless the URL says otherwise."""


def from_url(url: str) -> Backend:
    try:
        srv = url.lower().startswith("mongodb+srv:")  # reading the rest of it would ask a name server
        options = {} if srv else parse_uri(url, warn=False)["options"]
    except (PyMongoError, ValueError) as error:
        reason = str(error) if isinstance(error, PyMongoError) and without_password(url) == url else "it cannot be read"
        raise ConfigurationError(
            f"store={without_password(url)!r}: {reason}. Write mongodb://user:password@host:27017/database?…, with "
            "options of PyMongo, and other characters than letters and digits percent-encoded."
        ) from None
    settings: dict[str, Any] = {} if "timeoutms" in options or "timeoutms=" in url.lower() else {"timeoutMS": TIMEOUT}
    address = without_password(url)
    return _backend(
        address,
        sync=lambda: MongodbClient(_collection(MongoClient(url, **settings), address), own=True),
        asynchronous=lambda: AsyncMongodbClient(_collection(AsyncMongoClient(url, **settings), address), own=True),
    )


def from_client(client: Any) -> Backend:
    """A backend on a MongoClient, in its default database."""
    address = _address(client)
    made = MongodbClient(_collection(client, address), own=False)
    return _backend(address, sync=lambda: made, places=lambda: {identity.pool(client)})


def from_async_client(client: Any) -> Backend:
    """A backend on an AsyncMongoClient, in its default database."""
    address = _address(client)
    made = AsyncMongodbClient(_collection(client, address), own=False)
    return _backend(address, asynchronous=lambda: made, places=lambda: {identity.pool(client)})


def join(session: Any, kind: str, address: str) -> Joining:
    _refuse_other(kind)
    executor = Executor(_collection(session.client, address), session)
    return Joining(executor, None, place=identity.pool(session.client), kind="mongodb")


def ajoin(session: Any, kind: str, address: str) -> Joining:
    _refuse_other(kind)
    executor = AsyncExecutor(_collection(session.client, address), session)
    return Joining(None, executor, place=identity.pool(session.client), kind="mongodb")


def _refuse_other(kind: str) -> None:
    refuse_kind("mongodb", kind)
    if not kind:
        raise ConfigurationError("tx= is a session of MongoDB, and this writes SQL. Nothing was sent.")


def _backend(address: str, **access: Any) -> Backend:
    name = ".".join(_names(address))
    return Backend(MongodbStore(name, address), StoreAccess(address, wants_restart=wants_restart, **access))


def _address(client: Any) -> str:
    """The address of a user's client, as far as it knows its servers by now."""
    nodes = ",".join(f"{host}:{port}" for host, port in sorted(client.nodes)) or "…"
    return f"mongodb://{nodes}/{client.get_default_database(DATABASE).name}"


def _names(address: str) -> tuple[str, str]:
    """The database and the collection of an address, which may end in database.collection."""
    database, _, collection = unquote(urlsplit(address).path.removeprefix("/")).partition(".")
    return database or DATABASE, collection or COLLECTION


def _collection(client: Any, address: str) -> Any:
    """The collection, as every promise needs it, whatever the client's own settings are."""
    database, collection = _names(address)
    return client.get_database(database).get_collection(
        collection,
        codec_options=CodecOptions(),
        read_preference=ReadPreference.PRIMARY,
        read_concern=ReadConcern("majority"),
        write_concern=WriteConcern("majority", j=True),
    )
