"""HTTP, the server side: requests with an ``Idempotency-Key`` run once, and their retries get the first response."""

from retrysafe.claims.responses import Response, respond

__all__ = ["Response", "respond"]
