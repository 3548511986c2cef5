"""Operations of users on a boundary on memory that nothing observes, for `walks` and for `counted`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from retrysafe import Boundary
from retrysafe.http.asgi import IdempotencyMiddleware

Post = Callable[[str], Awaitable[None]]


def boundary_on_memory() -> Boundary:
    """Make a boundary that does nothing beside its claims."""
    return Boundary("memory", store="memory://", observers=())


def place(order: str, amount: int = 5) -> dict[str, Any]:
    """Return the answer to an order, as a guarded function does."""
    return {"id": order, "amount": amount, "state": "placed"}


async def _application(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def guarded(boundary: Boundary) -> Post:
    """Guard an application by the ASGI middleware."""
    return _posting(IdempotencyMiddleware(_application, boundary=boundary, principal="shared"))


def bare() -> Post:
    """Leave the same application without a guard."""
    return _posting(_application)


def _posting(application: Any) -> Post:
    async def post(key: str) -> None:
        headers = [(b"idempotency-key", f'"{key}"'.encode()), (b"content-length", b"2")]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        scope |= {
            "http_version": "1.1",
            "scheme": "http",
            "raw_path": b"/",
            "root_path": "",
            "asgi": {"version": "3.0"},
        }
        body = iter([{"type": "http.request", "body": b"{}", "more_body": False}])

        async def receive() -> Any:
            return next(body, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            pass

        await application(scope, receive, send)

    return post
