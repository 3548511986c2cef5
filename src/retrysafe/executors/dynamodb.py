"""boto3 and aiobotocore: a failed condition is an answer and carries the item in the way."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from retrysafe.errors import ConfigurationError, SchemaOutdated, StoreUnavailable
from retrysafe.ports import Call, Item


def _arguments(options: dict[str, str]) -> dict[str, Any]:
    """URL options as client arguments: ``region`` and ``endpoint``; credentials come from the environment."""
    return {"region_name": options.get("region"), "endpoint_url": options.get("endpoint")}


def _answer(response: dict[str, Any]) -> Item:
    return Item(True, response.get("Attributes") or response.get("Item"))


def _refused(error: ClientError) -> Item:
    code = error.response["Error"]["Code"]
    if code == "ConditionalCheckFailedException":
        item: Any = error.response.get("Item")
        return Item(False, item)
    if code == "ResourceNotFoundException":
        raise SchemaOutdated("The DynamoDB table does not exist.") from error
    raise StoreUnavailable(str(error)) from error


class DynamodbClient:
    """A boto3 client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def connect(cls, options: dict[str, str]) -> DynamodbClient:
        """A client of our own."""
        import boto3

        return cls(boto3.client("dynamodb", **_arguments(options)))

    def __call__(self, request: Call, /) -> Item:
        try:
            return _answer(getattr(self._client, request.operation)(**request.arguments))
        except ClientError as error:
            return _refused(error)
        except BotoCoreError as error:
            raise StoreUnavailable(str(error)) from error

    def transaction(self) -> Any:
        """DynamoDB's transactions cannot be shared with the caller's code."""
        raise ConfigurationError("store=: DynamoDB has no transactions to share.")

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class AsyncDynamodbClient:
    """An aiobotocore client, opened at first use."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._client: Any = None

    @classmethod
    def connect(cls, options: dict[str, str]) -> AsyncDynamodbClient:
        """A client of our own."""
        return cls(options)

    async def __call__(self, request: Call, /) -> Item:
        if self._client is None:
            from aiobotocore.session import get_session

            self._client = await self._stack.enter_async_context(
                get_session().create_client("dynamodb", **_arguments(self._options))
            )
        try:
            return _answer(await getattr(self._client, request.operation)(**request.arguments))
        except ClientError as error:
            return _refused(error)
        except BotoCoreError as error:
            raise StoreUnavailable(str(error)) from error

    def transaction(self) -> Any:
        """DynamoDB's transactions cannot be shared with the caller's code."""
        raise ConfigurationError("store=: DynamoDB has no transactions to share.")

    async def aclose(self) -> None:
        """Close the client."""
        await self._stack.aclose()
        self._client = None

    def abandon(self) -> None:
        """Nothing to hang up: what is left goes with this object."""
