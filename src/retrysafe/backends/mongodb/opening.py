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
from retrysafe.backends.mongodb.client import AsyncMongodbClient, MongodbClient, wants_restart
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
        if not url.lower().startswith("mongodb+srv:"):  # reading that would ask a name server
            parse_uri(url, warn=False)
    except (PyMongoError, ValueError) as error:
        reason = str(error) if isinstance(error, PyMongoError) and without_password(url) == url else "it cannot be read"
        raise ConfigurationError(
            f"store={without_password(url)!r}: {reason}. Write mongodb://user:password@host:27017/database?…, with "
            "options of PyMongo, and other characters than letters and digits percent-encoded."
        ) from None
    settings: dict[str, Any] = {} if "timeoutms=" in url.lower() else {"timeoutMS": TIMEOUT}
    address = without_password(url)
    return _backend(
        address,
        sync=lambda: MongodbClient(_collection(MongoClient(url, **settings), address), own=True),
        asynchronous=lambda: AsyncMongodbClient(_collection(AsyncMongoClient(url, **settings), address), own=True),
    )


def from_client(client: Any) -> Backend:
    """A backend on a MongoClient or AsyncMongoClient, in its default database."""
    nodes = ",".join(f"{host}:{port}" for host, port in sorted(client.nodes)) or "…"  # as far as it knows them by now
    address = f"mongodb://{nodes}/{client.get_default_database(DATABASE).name}"
    collection, places = _collection(client, address), lambda: {identity.pool(client)}
    if isinstance(client, AsyncMongoClient):
        return _backend(address, asynchronous=lambda: AsyncMongodbClient(collection), places=places)
    return _backend(address, sync=lambda: MongodbClient(collection), places=places)


def join(session: Any, kind: str, address: str) -> Joining:
    refuse_kind("mongodb", kind)
    if not kind:
        raise ConfigurationError("tx= is a session of MongoDB, and this writes SQL. Nothing was sent.")
    client = session.client
    given, place = (_collection(client, address), session), identity.pool(client)
    if isinstance(client, AsyncMongoClient):
        return Joining(None, AsyncMongodbClient(*given), place=place, kind=kind)
    return Joining(MongodbClient(*given), None, place=place, kind=kind)


def _backend(address: str, **access: Any) -> Backend:
    name = ".".join(_names(address))
    return Backend(MongodbStore(name, address), StoreAccess(address, wants_restart=wants_restart, **access))


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
