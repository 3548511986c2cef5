"""The types of ``claim.tx`` on clients of PyMongo."""

from __future__ import annotations

from typing import assert_type

from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession

from retrysafe import Boundary

Row = dict[str, object]


def stores(client: MongoClient[Row], aclient: AsyncMongoClient[Row]) -> None:
    assert_type(Boundary("b", store=client, effects="transactional"), Boundary[ClientSession])
    assert_type(Boundary("b", store=aclient, effects="transactional"), Boundary[AsyncClientSession])
    assert_type(Boundary("b", store=client), Boundary[None])
