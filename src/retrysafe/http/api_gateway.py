"""Requests that Amazon API Gateway, function URLs and load balancers hand to a function of AWS Lambda.

Their events are read as HTTP requests, so that the contract of the other integrations holds. A key is kept as long as
the invocation may still take, and not renewed: see `retrysafe.tasks.aws_lambda`.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Unpack
from urllib.parse import urlencode

from retrysafe.boundary import Boundary
from retrysafe.claims.claim import Claim
from retrysafe.claims.functions import is_coroutine_function
from retrysafe.errors import ConfigurationError, InProgress
from retrysafe.http.bodies import Body
from retrysafe.http.exchange import SYNC_PORT, UnaryExchange
from retrysafe.http.guard import Guard
from retrysafe.http.messages import Headers, Request, Response
from retrysafe.http.policy import UNSAFE, Options
from retrysafe.http.principals import UNSAID, Principal, find
from retrysafe.http.problems import Refusal
from retrysafe.http.without_loop import run_without_loop

MARGIN = 1.0
"""Seconds for which a key is kept beyond the end of the invocation."""
Event = Mapping[str, Any]
Function = Callable[..., Any]


def idempotent(
    boundary: Boundary, *, principal: Principal = UNSAID, **options: Unpack[Options]
) -> Callable[[Function], Function]:
    """Decorate a handler of ``event`` and ``context`` that answers HTTP requests: each key's request runs once.

    Arguments:
        boundary: the boundary that does each request once.
        principal: a function of the event that returns whose request it is, such as the subject of the authorizer's
            token; or "shared", if all clients are one.
        options: see `Options`; ``required`` is True, and ``methods`` are POST, PUT, PATCH and DELETE, unless you say
            otherwise.

    A retry gets the stored answer, in the form of the event (payload format 1.0, 2.0, or of a load balancer).
    Raises `ConfigurationError` for wrong options and coroutine functions, and in the handler for an event that is no
    request.
    """
    merged: Options = {"required": True, "methods": UNSAFE, **options}
    guard = _LambdaGuard(boundary, merged, principal)

    def decorate(function: Function) -> Function:
        if is_coroutine_function(function):
            raise ConfigurationError("Lambda calls plain functions: use asyncio.run() in one.")

        @functools.wraps(function)
        def handle(event: Event, context: Any) -> Any:
            return _serve(guard, function, event, context)

        return handle

    return decorate


def seconds_left(context: Any) -> float:
    """Seconds until Lambda has certainly ended the process; 0 if no time is left to begin anything."""
    left: int = context.get_remaining_time_in_millis()
    return left / 1000 + MARGIN if left > 0 else 0.0


class _LambdaGuard(Guard):
    """A guard whose claims are held for the ``left`` seconds of the invocation; a process has one at a time."""

    left = 0.0

    def claim(self, *args: Any, **options: Any) -> Claim:
        return super().claim(*args, **options)._hold_for(self.left)


def _serve(guard: _LambdaGuard, function: Function, event: Event, context: Any) -> Any:
    request = _request_of(event)
    try:
        key = guard.admit(request)
        if key is None:
            return function(event, context)
        guard.left = seconds_left(context)
        if not guard.left:
            raise guard.refusal(InProgress("No time of the invocation is left. Nothing was run."))
        scope = guard.scope(find(guard.principal, event))
        body = Body(request, guard.policy)
        body.add(_body_of(event))
    except Refusal as refusal:
        return _answer(event, guard.answer(refusal))
    returned: Any = None

    async def handler() -> Response:
        nonlocal returned
        returned = function(event, context)
        return _response_of(returned)

    try:
        exchange = UnaryExchange(guard, request, key, body, scope, port=SYNC_PORT)
        instead = run_without_loop(exchange.respond(handler))
    finally:
        body.close()
    if instead is None:
        return returned
    return _answer(event, guard.answer(instead) if isinstance(instead, Refusal) else instead)


def _request_of(event: Event) -> Request:
    """The request of an event in format 2.0 (HTTP APIs, function URLs), 1.0 (REST APIs), or of a load balancer."""
    context: Mapping[str, Any] = event.get("requestContext") or {}
    several: Mapping[str, list[str]] | None = event.get("multiValueHeaders")
    if several is None:
        several = {name: [value] for name, value in (event.get("headers") or {}).items()}
    headers = _fields((name, value) for name, values in several.items() for value in values)
    if "http" in context:
        method, path, query = context["http"]["method"], event["rawPath"], event.get("rawQueryString", "")
        route = event.get("routeKey", "").partition(" ")[2]
    elif "httpMethod" in event:
        given = event.get("multiValueQueryStringParameters") or event.get("queryStringParameters") or {}
        method, path, query = event["httpMethod"], event["path"], urlencode(given, doseq=True)
        route = event.get("resource") or ""
    else:
        raise ConfigurationError(
            "The event is no HTTP request. Guard other events with retrysafe.tasks.aws_lambda.once(). Nothing was run."
        )
    return Request(method, path.encode(), query.encode(), headers, (path,), route)


def _body_of(event: Event) -> bytes:
    text = event.get("body") or ""
    return base64.b64decode(text) if event.get("isBase64Encoded") else text.encode()


def _response_of(returned: Any) -> Response:
    """The response that API Gateway makes of what a function returns; without a status it is JSON, and 200."""
    if not isinstance(returned, Mapping) or "statusCode" not in returned:
        text = returned if isinstance(returned, str) else json.dumps(returned, default=_number)
        return Response(200, ((b"content-type", b"application/json"),), text.encode())
    headers = [(name, str(value)) for name, value in (returned.get("headers") or {}).items()]
    headers += [
        (name, str(one)) for name, values in (returned.get("multiValueHeaders") or {}).items() for one in values
    ]
    headers += [("set-cookie", cookie) for cookie in returned.get("cookies") or ()]
    return Response(int(returned["statusCode"]), _fields(headers), _body_of(returned))


def _fields(headers: Iterable[tuple[str, str]]) -> Headers:
    """Field lines of JSON, whose text may have any character."""
    return tuple((name.lower().encode(), value.encode()) for name, value in headers)


def _number(value: object) -> float:
    """A number of DynamoDB, as Lambda's own runtime writes it into JSON."""
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _answer(event: Event, response: Response) -> dict[str, Any]:
    """A response as the function returns it, in the form that the sender of the event reads."""
    lines: dict[str, list[str]] = {}
    for name, value in response.headers:
        lines.setdefault(name.decode(), []).append(value.decode())
    body = response.body or b""
    try:
        answer: dict[str, Any] = {"statusCode": response.status, "body": body.decode()}
    except UnicodeDecodeError:
        answer = {"statusCode": response.status, "body": base64.b64encode(body).decode(), "isBase64Encoded": True}
    if "multiValueHeaders" in event:
        return {**answer, "multiValueHeaders": lines}
    cookies = lines.pop("set-cookie", None)
    if cookies and "version" in event:
        answer["cookies"] = cookies
    elif cookies:
        lines["set-cookie"] = cookies[-1:]
    return {**answer, "headers": {name: ", ".join(values) for name, values in lines.items()}}
