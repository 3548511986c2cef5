"""AWS Lambda: records of SQS, events and requests that a function handles once for each key.

Between two invocations the process is frozen, so nothing renews a lease there. It is as long as the invocation may
still take: afterwards Lambda has ended the process, and another one may go on with the key.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from retrysafe.boundary import Boundary
from retrysafe.claims.decorator import Selector
from retrysafe.claims.functions import is_coroutine_function
from retrysafe.claims.observers import logger
from retrysafe.errors import ConfigurationError, InProgress, Postponed
from retrysafe.http.api_gateway import seconds_left
from retrysafe.tasks.delivery import Call, Reply, TaskHandler, TaskOptions, Told

_NO_TIME = Reply(Told.HAND_BACK, None, InProgress("No time of the invocation is left. Nothing was run."), 0.0)
Function = Callable[..., Any]


def batch(boundary: Boundary, *, key: Selector, **options: Unpack[TaskOptions]) -> Callable[[Function], Function]:
    """Decorate a function of one ``record`` of SQS; what it makes is the handler of the Lambda function.

    ``key`` is a path into the record, whose body is parsed if it is JSON ("body.order_id"), or a callable that takes
    ``record``. What must be the same on every delivery is by default the body. See `TaskOptions` for the others.

    The event source mapping needs ``FunctionResponseTypes=["ReportBatchItemFailures"]``: records that have to come
    again are reported, in a FIFO queue with all later ones of their group. So are those for which no time is left. A
    record that is given up leaves the queue if it is kept as a dead letter. Else it is reported too, and the queue's
    own rules move it to its dead-letter queue.
    """

    def decorate(function: Function) -> Function:
        handler = _handler(boundary, function, "record", key, {"payload": "record.body", **options})

        @functools.wraps(function)
        def handle(event: Mapping[str, Any], context: Any) -> dict[str, Any]:
            failures: list[dict[str, str]] = []
            blocked: set[str] = set()
            for record in event["Records"]:
                group = record["attributes"].get("MessageGroupId")
                if group in blocked or not _handle_record(handler, record, context):
                    failures.append({"itemIdentifier": record["messageId"]})
                    if group is not None:
                        blocked.add(group)
            return {"batchItemFailures": failures}

        return handle

    return decorate


def once(boundary: Boundary, *, key: Selector, **options: Unpack[TaskOptions]) -> Callable[[Function], Function]:
    """Decorate a handler of ``event`` and ``context`` that is invoked with one event, as by EventBridge or SNS.

    ``key`` is a path into the event ("id", "detail.order_id"), or a callable that takes ``event``. What must be the
    same on every delivery is by default the event's ``detail``, if it has one. See `TaskOptions` for the others.

    An event that may not be handled now is an error, after which Lambda or its caller tries again. Requests of API
    Gateway are guarded by `retrysafe.http.api_gateway.idempotent`; here they raise `ConfigurationError`.
    """

    def decorate(function: Function) -> Function:
        handler = _handler(boundary, function, "event", key, {"payload": _content_of, **options})

        @functools.wraps(function)
        def handle(event: Mapping[str, Any], context: Any) -> Any:
            if "requestContext" in event:
                raise ConfigurationError(
                    "The event is an HTTP request, whose key is its client's alone. Nothing was run. Guard it with "
                    "retrysafe.http.api_gateway.idempotent(boundary, principal=…)."
                )
            call = Call((event, context), {}, context.aws_request_id, handler.consumer, ((event,), {}))
            reply = _deliver(handler, call, context, redelivered=True)
            if reply.told is Told.RETURN:
                return reply.value
            if isinstance(reply.error, Postponed):  # as it is, it would end Lambda's process
                raise InProgress(reply.error.detail, retry_after=reply.error.retry_after) from reply.error
            raise reply.error

        return handle

    return decorate


def _handler(boundary: Boundary, function: Function, takes: str, key: Selector, options: TaskOptions) -> TaskHandler:
    if is_coroutine_function(function):
        raise ConfigurationError("Lambda calls plain functions: use asyncio.run() in one.")
    return TaskHandler(boundary, function, f"{takes}.{key}" if isinstance(key, str) else key, "lambda", options)


def _content_of(event: Mapping[str, Any]) -> Any:
    return event.get("detail", event)


def _handle_record(handler: TaskHandler, record: Mapping[str, Any], context: Any) -> bool:
    """Handle a record; tell whether the queue may forget it."""
    parsed = {**record, "body": _parsed(record["body"])}
    again = int(record["attributes"]["ApproximateReceiveCount"]) > 1
    call = Call((parsed,), {}, record["messageId"], handler.consumer, ((record,), {}))
    reply = _deliver(handler, call, context, redelivered=again)
    if reply.told is not Told.RETURN:
        logger().warning("Record %s: %s. %s", record["messageId"], reply.told.value, reply.error)
    return reply.told is Told.RETURN or (reply.told is Told.GIVE_UP and handler.keeps)


def _deliver(handler: TaskHandler, call: Call, context: Any, *, redelivered: bool) -> Reply:
    left = seconds_left(context)
    return handler.deliver(call._replace(lease=left), redelivered=redelivered) if left else _NO_TIME


def _parsed(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body
