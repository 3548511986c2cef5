"""boto3 and aiobotocore: what the service refuses is an answer where the call expects it, else an error of ours."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
)

from retrysafe import lazy
from retrysafe.backends.dynamodb.requests import Answer, Call
from retrysafe.backends.service_clock import ServiceClock
from retrysafe.backends.spec import OpenedOnLoop, WithoutTransactions, library
from retrysafe.errors import ConfigurationError, SchemaOutdated, StoreMisconfigured, StoreUnavailable
from retrysafe.protocol.backoff import Backoff
from retrysafe.runtime import new_lock

TURNED_AWAY = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "ReplicatedWriteConflictException",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "TransactionConflictException",
    }
)
"""Error codes of requests that were not carried out and may come again later. A 5xx is not among them: it may have
been carried out, so a program must know of it before it is put again."""
_PASSING = {"None", "ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"}
"""Reasons for which a transaction was cancelled that may come again later."""
_UNSENT = (ConnectTimeoutError, EndpointConnectionError)
_BACKOFF = Backoff(base=0.05, cap=1.0)
_making = new_lock()
"""A default session of boto3 must not be used by two threads at once."""


class Access(NamedTuple):
    """The address of the service, and its deadlines; credentials come from the environment.

    timeout: seconds to connect, and again for one try to be answered.
    patience: seconds of pauses, over all tries, for a service that asks to come again later.
    """

    region: str | None = None
    endpoint: str | None = None
    timeout: float = 2.0
    pool: int = 50
    patience: float = 3.0

    def arguments(self, config: type[Config]) -> dict[str, Any]:
        """As a botocore client takes it. It is not to retry by itself: one retry would hide the time of the next."""
        settings = config(
            connect_timeout=self.timeout,
            read_timeout=self.timeout,
            max_pool_connections=self.pool,
            retries={"mode": "standard", "total_max_attempts": 1},
            tcp_keepalive=True,
            parameter_validation=False,
        )
        return {"region_name": self.region, "endpoint_url": self.endpoint, "config": settings}


def pauses(patience: float) -> Iterator[float]:
    """Yield the pause before each further try: growing, with full jitter, in all at most ``patience`` seconds."""
    for attempt in range(16):
        pause = _BACKOFF.delay(attempt, random.random())
        patience -= pause
        if patience < 0:
            return
        yield pause


def _code(error: ClientError) -> str:
    """The code of an error; of a transaction that of the item for which it was cancelled."""
    code = str(error.response["Error"].get("Code", ""))
    if code != "TransactionCanceledException":
        return code
    reasons = [str(reason.get("Code")) for reason in error.response.get("CancellationReasons", ())]
    if "ConditionalCheckFailed" in reasons:
        return "ConditionalCheckFailedException"
    return "TransactionConflictException" if set(reasons) <= _PASSING else code


def _date(response: Mapping[str, Any]) -> str | None:
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    date: str | None = headers.get("date")
    return date


def _tables_of(request: Call) -> str:
    items = request.arguments.get("TransactItems") or [{"": request.arguments}]
    return " or ".join(repr(named["TableName"]) for item in items for named in item.values())


def _judge(error: ClientError, request: Call) -> Answer:
    code = _code(error)
    if code in request.expected:
        return Answer(code, error.response)
    if code == "ResourceNotFoundException":
        raise SchemaOutdated(
            f"The DynamoDB table {_tables_of(request)} does not exist in this account and region. "
            "Run:  retrysafe migrate --store URL"
        ) from error
    if code in _REFUSED:
        raise StoreMisconfigured(f"{str(error).rstrip('.')}. {_REFUSED[code]}", unsent=True) from error
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    raise StoreUnavailable(str(error), unsent=int(status) < 500) from error


_CREDENTIALS = "Give this process valid AWS credentials of the account that has the table."
_REFUSED = {
    **dict.fromkeys(
        (
            "UnrecognizedClientException",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "MissingAuthenticationTokenException",
            "IncompleteSignatureException",
            "ExpiredTokenException",
        ),
        _CREDENTIALS,
    ),
    "AccessDeniedException": "Allow the role of this process the action that is named, on this table.",
}
"""Errors by which AWS refuses a caller until its credentials or its role are corrected, with the remedy."""


def _fail(error: Exception) -> NoReturn:
    if isinstance(error, NoCredentialsError):
        raise ConfigurationError(
            "store=: no AWS credentials were found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this "
            "machine a profile or a role."
        ) from error
    raise StoreUnavailable(f"{type(error).__name__}: {error}", unsent=isinstance(error, _UNSENT)) from error


@contextmanager
def _with_region() -> Iterator[None]:
    try:
        yield
    except NoRegionError as error:
        raise ConfigurationError(
            "store=: no AWS region is set. Write dynamodb://table?region=…, or set AWS_DEFAULT_REGION."
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"store=: {error}") from error


class Plain:
    """The client of a boto3 resource, which speaks Python values, spoken to in DynamoDB's own.

    What a failed condition answers is left by boto3 as the service sent it.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.get_waiter = client.get_waiter

    def __getattr__(self, operation: str) -> Any:
        method = getattr(self._client, operation)
        types = library("boto3.dynamodb.types", "dynamodb")
        read, write = types.TypeDeserializer().deserialize, types.TypeSerializer().serialize
        return lambda **arguments: _each_value(method(**_each_value(arguments, read)), write)


_MAPS = ("Key", "Item", "ExpressionAttributeValues", "ExclusiveStartKey", "LastEvaluatedKey", "Attributes")


def _each_value(node: Any, change: Any) -> Any:
    """Change the values of every map of attributes, wherever it stands."""

    def change_each(attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {name: change(value) for name, value in attributes.items()}

    if isinstance(node, list):
        return [_each_value(one, change) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        name: change_each(value)
        if name in _MAPS
        else [change_each(item) for item in value]
        if name == "Items"
        else _each_value(value, change)
        for name, value in node.items()
    }


class DynamodbClient(WithoutTransactions):
    """A boto3 client; it is safe to use from many threads."""

    def __init__(self, client: Any, clock: ServiceClock, patience: float = Access().patience, *, own: bool = False):
        self._client = client
        self._clock = clock
        self._patience = patience
        self._own = own

    @classmethod
    def connect(cls, access: Access, clock: ServiceClock) -> DynamodbClient:
        with _making, _with_region():
            client = lazy.boto3.client("dynamodb", **access.arguments(Config))
        return cls(client, clock, access.patience, own=True)

    def __call__(self, request: Call, /) -> Answer:
        waits = pauses(self._patience)
        while True:
            try:
                return self._perform(request)
            except ClientError as error:
                pause = next(waits, None) if _code(error) in TURNED_AWAY else None
                if pause is None:
                    return _judge(error, request)
            except (BotoCoreError, OSError) as error:
                _fail(error)
            time.sleep(pause)

    def _perform(self, request: Call) -> Answer:
        if request.waits:
            self._client.get_waiter(request.operation).wait(**request.arguments)
            return Answer(None, {})
        sent = self._clock.local()
        try:
            response = getattr(self._client, request.operation)(**request.arguments)
        except ClientError as error:
            self._clock.note(sent, self._clock.local(), _date(error.response))
            raise
        self._clock.note(sent, self._clock.local(), _date(response))
        return Answer(None, response)

    def close(self) -> None:
        if self._own:
            self._client.close()


_sessions: dict[asyncio.AbstractEventLoop, Any] = {}


def _session() -> Any:
    """One session per loop: reading the service's description anew for a heartbeat would stop the loop for long."""
    loop = asyncio.get_running_loop()
    found = _sessions.get(loop)
    if found is None:
        for ended in [other for other in list(_sessions) if other.is_closed()]:  # other threads' loops come meanwhile
            _sessions.pop(ended, None)
        found = _sessions[loop] = library("aiobotocore.session", "dynamodb").get_session()
    return found


class AsyncDynamodbClient(OpenedOnLoop):
    """An aiobotocore client."""

    def __init__(self, access: Access, clock: ServiceClock, client: Any = None) -> None:
        self._access = access
        self._clock = clock
        self._opened = client

    async def __call__(self, request: Call, /) -> Answer:
        waits = pauses(self._access.patience)
        while True:
            try:
                return await self._perform(self._opened or await self._open(), request)
            except ClientError as error:
                pause = next(waits, None) if _code(error) in TURNED_AWAY else None
                if pause is None:
                    return _judge(error, request)
            except (BotoCoreError, OSError) as error:
                _fail(error)
            await asyncio.sleep(pause)

    async def _perform(self, client: Any, request: Call) -> Answer:
        if request.waits:
            await client.get_waiter(request.operation).wait(**request.arguments)
            return Answer(None, {})
        sent = self._clock.local()
        try:
            response = await getattr(client, request.operation)(**request.arguments)
        except ClientError as error:
            self._clock.note(sent, self._clock.local(), _date(error.response))
            raise
        self._clock.note(sent, self._clock.local(), _date(response))
        return Answer(None, response)

    async def _living(self) -> AsyncGenerator[Any, None]:
        config = library("aiobotocore.config", "dynamodb").AioConfig
        with _with_region():
            making = _session().create_client("dynamodb", **self._access.arguments(config))
            client = await making.__aenter__()
        try:
            yield client
        finally:
            await making.__aexit__(None, None, None)
