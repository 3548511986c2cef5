"""A stopped holder is refused by the resource itself: rows, objects in S3, keys in Redis, and a topic of Kafka."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from retrysafe import ConfigurationError, StaleToken
from retrysafe.claims.fences import Fence
from tests.boundary.shops import SHOPS, Shop
from tests.conftest import require, served
from tests.leases.holders import closing, jobs, stopped
from tests.messaging.harnesses.kafka import delete, every_record, operator
from tests.messaging.harnesses.sqs import options_of
from tests.tables import each_row

DRIVERS = (
    "sqlite3",
    "psycopg",
    "asyncpg",
    "PyMySQL",
    "asyncmy",
    "SQLAlchemy Session, psycopg",
    "SQLAlchemy AsyncSession, asyncmy",
    "SQLAlchemy AsyncConnection, aiosqlite",
    "Django, psycopg",
    "Django, MySQL",
)


async def _answer(given: Any) -> Any:
    return await given if hasattr(given, "__await__") else given


@asynccontextmanager
async def _files(shop: Shop) -> AsyncIterator[str]:
    """A table with two files: nothing has written the fence of the second one yet."""
    table = f"files_{uuid4().hex}"
    for sql in (
        f"CREATE TABLE {table} (name VARCHAR(40) PRIMARY KEY, content VARCHAR(40), fence BIGINT)",
        f"INSERT INTO {table} VALUES ('a', 'old', 0), ('b', 'old', NULL)",
    ):
        async with shop.transaction() as tx:
            await _answer(shop.execute(tx, sql))
    yield table
    async with shop.transaction() as tx:
        await _answer(shop.execute(tx, f"DROP TABLE {table}"))


@pytest.mark.slow
@each_row("driver", DRIVERS)
async def test_rows_refuse_a_stopped_holder(driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    service, open_ = SHOPS[driver]
    served(request, service)
    shop, boundary = open_(tmp_path), jobs()
    async with _files(shop) as table:

        async def write(lease: Fence, content: str, where: dict[str, Any]) -> Any:
            async with shop.transaction() as tx:
                return await _answer(lease.update(tx, table, {"content": content}, where))

        with stopped(boundary, "files") as zombie, boundary.lease("files") as holder:
            assert await write(zombie, "zombie", {"content": "old"}) == 2, "it is not known yet that it is late"
            assert await write(holder, "holder", {"name": "a"}) == 1
            assert await write(holder, "holder", {"name": "a"}) == 1, "it may write again, also the same"
            assert await write(holder, "holder", {"name": "c"}) == 0, "there is no such row"
            for where in ({"name": "a"}, {"content": "holder"}):
                with pytest.raises(StaleToken, match=f"{table}.*{holder.token}.*{zombie.token}"):
                    await write(zombie, "zombie", where)
            assert await write(zombie, "late", {"name": "b"}) == 1
            assert await write(holder, "late", {"name": "a"}) == 1
            with pytest.raises(StaleToken):  # one of two rows is the holder's
                await write(zombie, "zombie", {"content": "late"})
        looked = shop.look(f"SELECT content FROM {table} ORDER BY name")
        assert looked == ["late", "late"]
    await shop.close()
    boundary.close()


@each_row("client", ["sync", "async", "cluster"])
async def test_a_key_of_redis_refuses_a_stopped_holder(client: str) -> None:
    import redis
    import redis.asyncio

    require("redis_cluster" if client == "cluster" else "redis")
    opened: Any
    if client == "cluster":
        url = os.environ["RETRYSAFE_TEST_REDIS_CLUSTER"].removeprefix("redis+cluster://").partition(",")[0]
        opened = redis.RedisCluster.from_url(f"redis://{url}")
    else:
        kind: Any = redis.Redis if client == "sync" else redis.asyncio.Redis
        opened = kind.from_url(os.environ["RETRYSAFE_TEST_REDIS"])
    boundary = jobs()
    for key in (f"report {uuid4()}", f"{{{uuid4()}}} report"):
        with stopped(boundary, "report") as zombie, boundary.lease("report") as holder:
            for lease, value in ((zombie, "first"), (holder, "second"), (holder, "third")):
                await _answer(lease.set(opened, key, value))
                assert await _answer(opened.get(key)) == value.encode()
            with pytest.raises(StaleToken, match=f"{holder.token}.*{zombie.token}"):
                await _answer(zombie.set(opened, key, "late"))
            assert await _answer(opened.get(key)) == b"third"
        fence = Fence(2**53 + 1)
        await _answer(fence.set(opened, key, "x"))
        with pytest.raises(StaleToken):  # as numbers of Lua both would be equal
            await _answer(Fence(2**53).set(opened, key, "y"))
    await _answer(opened.aclose() if client == "async" else opened.close())
    boundary.close()


@asynccontextmanager
async def _s3(client: str) -> AsyncIterator[tuple[Any, str]]:
    """A client, and a bucket, of a stand-in for S3."""
    require("sns")
    settings = {
        "endpoint_url": options_of(os.environ["RETRYSAFE_TEST_SNS"])["endpoint"],
        "region_name": "us-east-1",
        "aws_access_key_id": "local",
        "aws_secret_access_key": "local",
    }
    bucket = f"leases-{uuid4().hex}"
    if client == "boto3":
        import boto3

        opened = boto3.client("s3", **settings)
        opened.create_bucket(Bucket=bucket)
        yield opened, bucket
        opened.close()
    else:
        from aiobotocore.session import get_session

        async with get_session().create_client("s3", **settings) as opened:
            await opened.create_bucket(Bucket=bucket)
            yield opened, bucket


class _Overtaken:
    """A client whose write is overtaken by that of another holder: once, after it has looked."""

    def __init__(self, client: Any, other: Callable[[], Awaitable[object]]) -> None:
        self._client, self._other, self._overtaken = client, other, False
        self.put_object = client.put_object

    def head_object(self, **given: Any) -> Any:
        looked = self._client.head_object(**given)
        if hasattr(looked, "__await__"):
            return self._then(looked)
        if not self._overtaken:
            self._overtaken = True
            coroutine: Any = self._other()
            with pytest.raises(StopIteration):  # a client for sync code waits for nothing
                coroutine.send(None)
        return looked

    async def _then(self, looked: Awaitable[Any]) -> Any:
        found = await looked
        if not self._overtaken:
            self._overtaken = True
            await self._other()
        return found


@each_row("client", ["boto3", "aiobotocore"])
async def test_an_object_in_s3_refuses_a_stopped_holder(client: str) -> None:
    boundary = jobs()
    async with _s3(client) as (s3, bucket):

        async def put(lease: Fence, body: Any, by: Any = s3, **options: Any) -> Any:
            return await _answer(lease.put_object(by, bucket, "prices", body, **options))

        async def content() -> bytes:
            body = (await _answer(s3.get_object(Bucket=bucket, Key="prices")))["Body"]
            read: bytes = await _answer(body.read())
            return read

        with stopped(boundary, "prices") as zombie, boundary.lease("prices") as holder:
            assert (await put(zombie, b"first", Metadata={"by": "me"}, ContentType="text/csv"))["ETag"]
            seen = await _answer(s3.head_object(Bucket=bucket, Key="prices"))
            assert (seen["Metadata"]["by"], seen["ContentType"]) == ("me", "text/csv")
            overtaken = _Overtaken(s3, lambda: put(holder, b"holder"))
            with pytest.raises(StaleToken, match=f"prices.*{holder.token}.*{zombie.token}"):
                await put(zombie, b"late", by=overtaken)
            with pytest.raises(StaleToken):  # it looks again, and is given the new ETag
                await put(zombie, b"late")
            assert await content() == b"holder"
            file = io.BytesIO(b"-file")
            file.seek(1)
            overtaken = _Overtaken(s3, lambda: put(holder, b"other"))
            await put(holder, file, by=overtaken)
            assert await content() == b"file", "it is read from its place again"
            await _answer(s3.delete_object(Bucket=bucket, Key="prices"))
            overtaken = _Overtaken(s3, lambda: put(holder, b"made"))
            with pytest.raises(ConfigurationError, match="IfMatch"):
                await put(holder, b"", IfMatch="x")
            with pytest.raises(Exception, match=r"NoSuchBucket|404|Not Found"):
                await _answer(holder.put_object(s3, f"{bucket}-missing", "prices", b""))
    boundary.close()


def test_writes_that_could_not_be_fenced_are_refused(tmp_path: Path) -> None:
    import sqlite3

    boundary, tx = jobs(), sqlite3.connect(tmp_path / "files.db")
    tx.execute("CREATE TABLE files (name TEXT, fence BIGINT)")
    with closing(boundary), boundary.lease("files") as lease:
        for table, values, where, said in (
            ("files; DROP TABLE files", {"name": "a"}, {"name": "b"}, "no name"),
            ("files", {"name = ''--": "a"}, {"name": "b"}, "no name"),
            ("files", {"name": "a"}, {}, "where="),
            ("files", {"fence": 1}, {"name": "b"}, "the token"),
        ):
            with pytest.raises(ConfigurationError, match=said):
                lease.update(tx, table, values, where)
        with pytest.raises(ConfigurationError, match="tx= is"):
            lease.update(object(), "files", {"name": "a"}, {"name": "b"})
        assert lease.update(tx, "files", {}, {"name": "a"}) == 0, "to set the fence alone"
    tx.close()


@pytest.mark.slow
def test_a_transactional_id_fences_the_producer_of_a_stopped_holder() -> None:
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import NewTopic

    require("kafka")
    url = os.environ["RETRYSAFE_TEST_KAFKA"]
    boundary, topic = jobs(), f"prices-{uuid4()}"
    admin = operator(url)
    admin.create_topics([NewTopic(topic, 1)])[topic].result()

    def begin(lease: Any) -> Any:
        made = Producer({"bootstrap.servers": url.removeprefix("kafka://"), "transactional.id": topic})
        made.init_transactions(30)
        lease.ensure_held()
        made.begin_transaction()
        return made

    with closing(boundary), stopped(boundary, "prices") as zombie, boundary.lease("prices") as holder:
        late = begin(zombie)
        late.produce(topic, b"late")
        assert late.flush(30) == 0
        current = begin(holder)
        with pytest.raises(KafkaException) as fenced:
            late.commit_transaction(30)
        assert fenced.value.args[0].fatal()
        current.produce(topic, b"holder")
        current.commit_transaction(30)
    found = [one.value() for one in every_record(url, topic, **{"isolation.level": "read_committed"})]
    assert found == [b"holder"]
    delete(url, topic)
