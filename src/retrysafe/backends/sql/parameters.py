"""What a statement is given: wants, records as they were seen, results and quotas as parameters."""

from __future__ import annotations

from typing import Any

from retrysafe.protocol.records import Allowance, ClaimRequest, Record, StoredResult


def want_params(request: ClaimRequest) -> dict[str, Any]:
    """What a claim asks for."""
    return {
        "key": request.key,
        "boundary": request.boundary,
        "scope": request.scope,
        "operation": request.operation,
        "fingerprint": request.fingerprint,
        "attempt": request.attempt,
        "effects": request.effects,
        "lease": request.clocks.lease,
        "window": request.clocks.window,
        "memory": request.clocks.memory,
    }


def quota_params(allowance: Allowance) -> dict[str, Any]:
    """The key that would fill a limit has so many before it."""
    before = {"rate_before": allowance.rate, "kept_before": allowance.outstanding}
    params: dict[str, Any] = {name: limit - 1 for name, limit in before.items() if limit is not None}
    return params | {"quota": allowance.holder, "period": allowance.period}


def seen_params(seen: Record) -> dict[str, Any]:
    """A record as it was seen."""
    return {"key": seen.key, "seen_attempt": seen.attempt, "seen_version": seen.version}


def result_params(result: StoredResult | None) -> dict[str, Any]:
    """What is stored of a result, if there is one."""
    body, media_type, version = result or (None, None, None)
    return {"result": body, "media_type": media_type, "codec_version": version}
