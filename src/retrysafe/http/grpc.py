"""gRPC: unary calls that carry an ``idempotency-key`` in their metadata run once. Interceptors for both servers.

A gRPC call is a POST to its method's path (gRPC over HTTP/2), so all rules of HTTP hold: keys, principals,
fingerprints over the request's bytes, routes such as "/shop.Orders/Place". Only the answers look different: statuses
and trailing metadata instead of problem details.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from typing import Any, NamedTuple, Unpack

from retrysafe.boundary import Boundary
from retrysafe.extras import NeedsExtra
from retrysafe.http import nested
from retrysafe.http.bodies import Body
from retrysafe.http.exchange import SYNC_PORT, SyncPort, UnaryExchange
from retrysafe.http.guard import Guard, ResponseOrigin
from retrysafe.http.messages import OMITTED, Headers, Request, Response
from retrysafe.http.policy import Options
from retrysafe.http.principals import UNSAID, Principal, afind, find
from retrysafe.http.problems import PROBLEMS, Refusal
from retrysafe.http.without_loop import run_without_loop
from retrysafe.protocol.exception_groups import every, leaves

with NeedsExtra("grpc"):
    import grpc
    import grpc.aio
    from grpc import StatusCode as Code

Metadata = tuple[tuple[str, str | bytes], ...]

AS_HTTP: dict[Code, int] = {
    Code.OK: 200,
    Code.INVALID_ARGUMENT: 400,
    Code.FAILED_PRECONDITION: 400,
    Code.OUT_OF_RANGE: 400,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
}
"""The HTTP equivalents of gRPC statuses: stored refusals, and those that free the key; others are like a 5xx."""

_AS_GRPC = {status: code for code, status in reversed(AS_HTTP.items())}
"""The status of a response that an operator has given without one: the first that amounts to it."""

STATUSES: dict[str, Code] = {
    "key-missing": Code.INVALID_ARGUMENT,
    "key-invalid": Code.INVALID_ARGUMENT,
    "key-reused": Code.INVALID_ARGUMENT,
    "key-expired": Code.FAILED_PRECONDITION,
    "principal-missing": Code.UNAUTHENTICATED,
    "in-progress": Code.ABORTED,
    "result-unavailable": Code.FAILED_PRECONDITION,
    "outcome-unknown": Code.FAILED_PRECONDITION,
    "response-unsupported": Code.UNIMPLEMENTED,
    "request-invalid": Code.INVALID_ARGUMENT,
    "request-too-large": Code.RESOURCE_EXHAUSTED,
    "store-unavailable": Code.UNAVAILABLE,
    "store-not-migrated": Code.UNAVAILABLE,
    "store-misconfigured": Code.UNAVAILABLE,
    "quota-exceeded": Code.RESOURCE_EXHAUSTED,
    "postponed": Code.UNAVAILABLE,
}
"""The status of each of the layer's own answers; ABORTED and UNAVAILABLE ask for a retry, with the same key."""

_STATUS, _MESSAGE = b"grpc-status", b"grpc-message"
_BY_NUMBER = {str(code.value[0]).encode(): code for code in Code}
REPLAYED = ("idempotent-replayed", "true")


class CallAnswer(NamedTuple):
    """The end of a call: its status, and the response's bytes if there is one."""

    code: Code
    details: str
    trailing: Metadata
    body: bytes

    def as_response(self) -> Response:
        """As it is stored: the status and the trailing metadata are trailers, as on the wire."""
        trailers = ((_STATUS, str(self.code.value[0]).encode()), (_MESSAGE, self.details.encode()))
        return Response(AS_HTTP.get(self.code, 500), trailers + _lines(self.trailing), self.body)


def _answer_of(stored: Response) -> CallAnswer:
    """A stored response as the answer to a retry. Raises `Refusal` for one whose message was too large to keep.

    In its place no message can stand: one of no bytes is a message, whose fields all have their defaults.
    """
    if any(name == OMITTED for name, _ in stored.headers):
        raise Refusal("result-unavailable")
    fields = dict(stored.headers)
    code = _BY_NUMBER.get(fields.get(_STATUS, b"")) or _AS_GRPC.get(stored.status, Code.UNKNOWN)
    details = fields.get(_MESSAGE, b"").decode()
    return CallAnswer(code, details, _metadata(stored.headers), stored.body or b"")


def _refuse(refusal: Refusal, guard: Guard) -> CallAnswer:
    problem = PROBLEMS[refusal.code]
    trailing: list[tuple[str, str | bytes]] = [
        ("retrysafe-code", refusal.code),
        ("retrysafe-safe-new-key", str(refusal.safe_new_key).lower()),
        ("retrysafe-type", f"{guard.policy.problem_base}{refusal.code}/"),
    ]
    if refusal.key:
        trailing.append(("retrysafe-key-hash", refusal.key))
    wait = problem.retry_after if refusal.retry_after is None else refusal.retry_after
    if wait is not None:
        trailing.append(("grpc-retry-pushback-ms", str(max(1000, round(wait * 1000)))))
    return CallAnswer(STATUSES[refusal.code], f"{problem.title}. {refusal.detail}", tuple(trailing), b"")


def _lines(metadata: Iterable[tuple[str, Any]] | None) -> Headers:
    pairs = metadata or ()
    return tuple(
        (name.lower().encode(), value if isinstance(value, bytes) else str(value).encode("latin-1", "replace"))
        for name, value in ((pair[0], pair[1]) for pair in pairs)
    )


_NOT_METADATA = frozenset(
    {_STATUS, _MESSAGE, b"content-length", b"content-type", b"cache-control", b"idempotent-replayed"}
)


def _metadata(headers: Headers) -> Metadata:
    return tuple(
        (name.decode(), value if name.endswith(b"-bin") else value.decode("latin-1"))
        for name, value in headers
        if name not in _NOT_METADATA
    )


class _Aborted(Exception):
    """The handler ended the call with a status."""

    def __init__(self, code: Code, details: str, trailing: Metadata) -> None:
        super().__init__(code)
        self.answer = CallAnswer(code, details, trailing, b"")


class _Context:
    """The context of a guarded call: what the handler says of its end is kept until that is recorded."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._code = Code.OK
        self._details = ""
        self._trailing: Metadata = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def set_code(self, code: Code) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        self._trailing = tuple((item[0], item[1]) for item in trailing_metadata)

    def code(self) -> Code:
        """The status so far."""
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Metadata:
        return self._trailing

    def end_call(self, body: bytes) -> CallAnswer:
        """Return the call's answer after the handler returned."""
        return CallAnswer(self._code, self._details, self._trailing, body)


class _SyncContext(_Context):
    def abort(self, code: Code, details: str = "") -> None:
        raise _Aborted(code, details, self._trailing)

    def abort_with_status(self, status: Any) -> None:
        raise _Aborted(status.code, status.details or "", tuple(status.trailing_metadata or ()))


class _AsyncContext(_Context):
    async def abort(self, code: Code, details: str = "", trailing_metadata: Iterable[Any] = ()) -> None:
        raise _Aborted(code, details, tuple(trailing_metadata) or self._trailing)

    async def abort_with_status(self, status: Any) -> None:
        raise _Aborted(status.code, status.details or "", tuple(status.trailing_metadata or ()))


async def _perform(handler: Any, raw: bytes, context: _Context) -> tuple[CallAnswer, _Aborted | None]:
    """Run the handler; also returned is the exception by which it ended the call instead of returning."""
    try:
        response = handler.unary_unary(_read(handler, raw), context)
        if hasattr(response, "__await__"):
            response = await response
    except (_Aborted, ExceptionGroup) as error:
        aborted = leaves(error)[0]
        if not isinstance(aborted, _Aborted) or not every(error, _Aborted):
            raise
        return aborted.answer, aborted
    return context.end_call(_write(handler, response, context)), None


class _Interceptor:
    """The common part of both interceptors."""

    _context: type[_Context]
    _port: SyncPort | None = None

    def __init__(
        self,
        boundary: Boundary,
        *,
        principal: Principal = UNSAID,
        **options: Unpack[Options],
    ) -> None:
        allowed = options.get("headers")
        if allowed is not None:
            options["headers"] = {*allowed, _STATUS.decode(), _MESSAGE.decode()}
        self.guard = Guard(boundary, options, principal)

    def _guards(self, details: Any, handler: Any) -> bool | None:
        """Tell whether calls of this method are guarded; None when they are refused, for answering in streams."""
        need = self.guard.policy.need("POST", details.method)
        named = self.guard.key_field.decode()
        carries = any(pair[0] == named for pair in details.invocation_metadata or ())
        if handler is None or need == "off" or (need == "optional" and not carries):
            return False
        return None if handler.request_streaming or handler.response_streaming else True

    def _request(self, details: Any, context: Any) -> tuple[Request, str]:
        """The call as a request: raises `Refusal`."""
        request = Request(
            "POST", details.method.encode(), b"", _lines(context.invocation_metadata()), route=details.method
        )
        key = self.guard.admit(request)
        assert key is not None, "a call without a key was let pass, or refused"
        return request, key

    async def _whose(self, context: Any) -> object:
        """The principal of a call."""
        return await afind(self.guard.principal, context)

    async def _call(self, details: Any, handler: Any, raw: bytes, context: Any) -> tuple[CallAnswer, bool]:
        """Return the call's answer, and whether it is a replay."""
        ended: list[CallAnswer] = []

        async def work() -> Response:
            answer, exchange.error = await _perform(handler, raw, self._context(context))
            exchange.origin = ResponseOrigin(raised=exchange.error is not None)
            ended[:] = [answer]
            return answer.as_response()

        try:
            request, key = self._request(details, context)
            if nested.is_inside(self.guard, request):
                return (await _perform(handler, raw, self._context(context)))[0], False
            scope = self.guard.scope(await self._whose(context))
            with closing(Body(request, self.guard.policy)) as body:
                body.add(raw)
                exchange = UnaryExchange(self.guard, request, key, body, scope, port=self._port)
                instead = await exchange.respond(work)
            if isinstance(instead, Response):
                return _answer_of(instead), True
        except Refusal as refusal:
            instead = refusal
        return (ended[0] if instead is None else _refuse(instead, self.guard)), False


class IdempotencyInterceptor(_Interceptor, grpc.ServerInterceptor):  # type: ignore[misc]
    """For ``grpc.server(…, interceptors=[IdempotencyInterceptor(boundary, principal=…)])``.

    Arguments:
        boundary: where the guarantee holds. With ``effects="transactional"`` the handler finds the transaction as
            ``current().tx``.
        principal: called with the `grpc.ServicerContext`, it returns whose call it is; a call without a principal is
            refused.
        options: see `retrysafe.http.policy.Options`; ``routes=`` takes methods: {"/shop.Orders/Place": "required"}.

    Streaming calls cannot be replayed: where a key is required, or sent, they end with UNIMPLEMENTED.
    """

    _context = _SyncContext
    _port = SYNC_PORT

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Guard the handler of a call."""
        handler = continuation(handler_call_details)
        guarded = self._guards(handler_call_details, handler)
        if guarded is False:
            return handler
        if guarded is None:
            return _like(handler, lambda request, context: _end(context, _answer_unsupported(self.guard)))

        def call(raw: bytes, context: Any) -> bytes | None:
            return _end(context, *run_without_loop(self._call(handler_call_details, handler, raw, context)))

        return grpc.unary_unary_rpc_method_handler(call)

    async def _whose(self, context: Any) -> object:
        return find(self.guard.principal, context)


class AsyncIdempotencyInterceptor(_Interceptor, grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """`IdempotencyInterceptor` for ``grpc.aio.server``. A client that cancels its call cancels the handler."""

    _context = _AsyncContext

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Guard the handler of a call."""
        handler = await continuation(handler_call_details)
        guarded = self._guards(handler_call_details, handler)
        if guarded is False:
            return handler
        if guarded is None:

            async def refuse(request: Any, context: Any) -> Any:
                return await _aend(context, _answer_unsupported(self.guard))

            return _like(handler, refuse)

        async def call(raw: bytes, context: Any) -> bytes | None:
            return await _aend(context, *await self._call(handler_call_details, handler, raw, context))

        return grpc.unary_unary_rpc_method_handler(call)


def _read(handler: Any, raw: bytes) -> Any:
    return raw if handler.request_deserializer is None else handler.request_deserializer(raw)


def _write(handler: Any, response: Any, context: _Context) -> bytes:
    if context.code() is not Code.OK:
        return b""
    written: bytes = response if handler.response_serializer is None else handler.response_serializer(response)
    return written


def _answer_unsupported(guard: Guard) -> CallAnswer:
    return _refuse(Refusal("response-unsupported", "Nothing was done. Streams cannot be replayed."), guard)


def _like(handler: Any, behaviour: Any) -> Any:
    """A handler of the same kind of call that does something else."""
    make = {
        (True, True): grpc.stream_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


def _end(context: Any, answer: CallAnswer, replayed: bool = False) -> bytes | None:
    """End the call as the answer says."""
    if replayed:
        context.send_initial_metadata((REPLAYED,))
    if answer.trailing:
        context.set_trailing_metadata(answer.trailing)
    if answer.code is not Code.OK:
        context.abort(answer.code, answer.details)
    return answer.body


async def _aend(context: Any, answer: CallAnswer, replayed: bool = False) -> bytes | None:
    if replayed:
        await context.send_initial_metadata((REPLAYED,))
    if answer.code is not Code.OK:
        await context.abort(answer.code, answer.details, answer.trailing)
    if answer.trailing:
        context.set_trailing_metadata(answer.trailing)
    return answer.body
