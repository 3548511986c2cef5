"""A reverse proxy that lets the requests of an HTTP service, in any language, run once. Needs the extra ``gateway``.

`Gateway` is an ASGI application; `retrysafe gateway` serves it, with a protocol of its own: give that to a uvicorn of
yours, ``uvicorn.Config(gateway, http=retrysafe.gateway.protocol.Protocol)``. What it can promise depends on the
service behind it:

- Nothing is sent twice by the gateway itself: it never repeats a request.
- A response that arrived is recorded before its client can see the end of it, and every retry gets it.
- A request that was certainly not sent (no connection) leaves its key free.
- In between, when a request was sent and its answer lost, a party in the middle cannot know. With
  ``effects="external"`` (the default) the key is then *unknown*, and the request is not sent again until a person has
  settled it. With ``effects="keyed"`` it is sent again on the next retry, with the same derived ``Idempotency-Key``:
  right only where the service recognises that.
"""

from __future__ import annotations

from retrysafe.gateway.app import Gateway
from retrysafe.gateway.config import load
from retrysafe.gateway.settings import Claims, Route, Settings, Timeouts, TrustedHeader

__all__ = ["Claims", "Gateway", "Route", "Settings", "Timeouts", "TrustedHeader", "load"]
