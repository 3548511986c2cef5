"""Fenced writes: a resource keeps the token of its last writer, and refuses a holder whose token is lower.

A lease alone cannot do this: its holder may be stopped between a look at its clock and the write, for longer than the
lease lasts. Each write here is a program that yields the answers of the user's own client. If that is for async code
they are coroutines, and the write is a coroutine too.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any

from retrysafe.backends.joining import join_any
from retrysafe.errors import ConfigurationError, StaleToken
from retrysafe.protocol.requests import Query

MARK = "fence"
"""The name of the token in the metadata of an object, and of the column in a row unless another one is named."""
_LOCKS = {"sqlite": "", "postgresql": " FOR UPDATE", "mysql": " FOR UPDATE"}
"""The end of a SELECT that keeps others from its rows; SQLite has one writer, which the transaction is by then."""
_NAME = re.compile(r'[\w$."`]+')
_TRIES = 5
_OURS = frozenset({"Bucket", "Key", "Body", "IfMatch", "IfNoneMatch"})
_SET = """
local seen = redis.call('GET', KEYS[2])
if seen and seen > ARGV[1] then return seen end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return false"""
"""Compares tokens as text of equal length: as numbers of Lua they would be rounded above 2^53."""

WriteProgram = Generator[Any, Any, Any]


class Fence:
    """A fencing token, and writes that are refused with `StaleToken` where a later token has written.

    A `Lease` is one. Make one of a token that came from elsewhere, such as in a message: ``Fence(token)``.
    """

    def __init__(self, token: int) -> None:
        self._token = token

    @property
    def token(self) -> int:
        """The fencing token: higher for every later holder."""
        return self._token

    def ensure_held(self) -> None:
        """Raise `LeaseLost` if the lease is known to have ended; of a token alone, only the resource can tell."""

    def update(
        self, tx: Any, table: str, values: Mapping[str, Any], where: Mapping[str, Any], *, column: str = MARK
    ) -> Any:
        """Update rows in your transaction, and set their fencing column; returns how many rows ``where`` selects.

        ``tx`` is as for `Boundary.claim`, on any database; ``where`` has the values that rows are selected by, and
        ``column`` names an integer column for the token. With an async ``tx``, await this.
        Raises `StaleToken` if one of the rows has a later token, and then none is written. For a model, or a loser that
        goes on, take ``update_if(at_most=…)``.
        """
        return _drive(_update(self, tx, table, values, where, column))

    def put_object(self, s3: Any, bucket: str, key: str, body: Any, **options: Any) -> Any:
        """Write an object by a client of boto3 or aiobotocore, and return its answer; with the latter, await this.

        The token is in the metadata, and the write is conditional on the version whose token was read. ``body`` is
        bytes or a file that can seek; ``options`` are more arguments of the client's ``put_object``.
        Raises `StaleToken` if the object has a later token.
        """
        return _drive(_put_object(self, s3, bucket, key, body, options))

    def set(self, redis: Any, key: str, value: Any) -> Any:
        """Set a key of Redis; with a client for async code, await this. The token is beside it, in the same slot.

        Raises `StaleToken` if it was set with a later token.
        """
        return _drive(_set(self, redis, key, value))


def _drive(program: WriteProgram) -> Any:
    """Perform a write; the answers of a client for async code are awaited, and so is the write."""
    try:
        answer = next(program)
        if hasattr(answer, "__await__"):
            return _adrive(program, answer)
        while True:
            answer = program.send(answer)
    except StopIteration as stop:
        return stop.value


async def _adrive(program: WriteProgram, answer: Any) -> Any:
    try:
        while True:
            try:
                found = await answer
            except Exception as error:  # noqa: BLE001 - the program decides
                answer = program.throw(error)
            else:
                answer = program.send(found)
    except StopIteration as stop:
        return stop.value


def _refuse_later(fence: Fence, place: str, latest: int) -> None:
    if latest > fence.token:
        raise StaleToken(f"{place} was written under token {latest}, and this holder has {fence.token}.")


def _update(
    fence: Fence, tx: Any, table: str, values: Mapping[str, Any], where: Mapping[str, Any], column: str
) -> WriteProgram:
    for name in (table, column, *values, *where):
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"update(): {name!r} is no name of a table or column.")
    if not where or column in values:
        raise ConfigurationError("update() takes the values that select rows as where=, and the token is no value.")
    fence.ensure_held()
    joining = join_any(tx)
    if joining.kind not in _LOCKS:
        raise ConfigurationError(f"update() knows {', '.join(_LOCKS)}; tx= is on {joining.kind}.")
    execute: Any = joining.execute or joining.aexecute
    keys = {f"w{i}": value for i, value in enumerate(where.values())}
    chosen = " AND ".join(f"{name} = :{key}" for name, key in zip(where, keys, strict=True))
    select = f"SELECT COALESCE({column}, 0) FROM {table} WHERE {chosen}{_LOCKS[joining.kind]}"
    found = (yield execute(Query(select, keys))).rows
    _refuse_later(fence, f"{table} {dict(where)}", max((row[0] for row in found), default=0))
    written = {f"v{i}": value for i, value in enumerate((*values.values(), fence.token))}
    sets = ", ".join(f"{name} = :{key}" for name, key in zip((*values, column), written, strict=True))
    update = f"UPDATE {table} SET {sets} WHERE {chosen} AND COALESCE({column}, 0) <= :v{len(values)}"
    yield execute(Query(update, written | keys))
    return len(found)


def _put_object(fence: Fence, s3: Any, bucket: str, key: str, body: Any, options: dict[str, Any]) -> WriteProgram:
    if taken := sorted(_OURS & options.keys()):
        raise ConfigurationError(f"put_object(): {taken[0]}= is set by the lease.")
    start = body.tell() if hasattr(body, "seek") else None
    options["Metadata"] = {**options.get("Metadata", {}), MARK: str(fence.token)}
    for left in reversed(range(_TRIES)):
        condition = {"IfNoneMatch": "*"}
        try:
            seen = yield s3.head_object(Bucket=bucket, Key=key)
        except Exception as error:
            if _status(error) != 404:
                raise
        else:
            # If-Match alone is no fence: a stale holder that looks again is given the new ETag.
            _refuse_later(fence, f"s3://{bucket}/{key}", int(seen["Metadata"].get(MARK, 0)))
            condition = {"IfMatch": seen["ETag"]}
        if start is not None:
            body.seek(start)
        fence.ensure_held()
        try:
            return (yield s3.put_object(Bucket=bucket, Key=key, Body=body, **options, **condition))
        except Exception as error:
            if _status(error) not in (404, 409, 412) or not left:  # it was written or removed since the look
                raise
    return None


def _status(error: Exception) -> int | None:
    """The HTTP status of an error of botocore."""
    answer: Any = getattr(error, "response", None) or {}
    status: int | None = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def _set(fence: Fence, redis: Any, key: str, value: Any) -> WriteProgram:
    fence.ensure_held()
    tagged = key.partition("{")[2].find("}") > 0  # Redis takes what the first braces enclose for the slot
    beside = f"{key}:{MARK}" if tagged else f"{{{key}}}:{MARK}"
    latest = yield redis.eval(_SET, 2, key, beside, f"{fence.token:020}", value)
    _refuse_later(fence, f"The key {key} of Redis", int(latest or 0))
