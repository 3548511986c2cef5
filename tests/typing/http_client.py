"""The HTTP client as users write it; a type checker reads this file, nothing runs it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import httpx
import requests
from requests.adapters import HTTPAdapter

from retrysafe import Event
from retrysafe.http.client import Budgets, Host, Journal, RequestOutcomeUnknown, Resumed, Retries
from retrysafe.http.client.httpx import AsyncRetryTransport, RetryTransport, aresume, resume
from retrysafe.http.client.requests import RetryAdapter
from retrysafe.http.client.requests import resume as resume_session


def observe(occurrence: Event) -> None:
    print(occurrence.name)


journal = Journal("calls.db", scope="tenant", secrets=["x-token"])
calls = Retries(
    [
        Host("https://api.example.com", retention=timedelta(days=1)),
        Host("https://api.stripe.com", key_syntax="bare", should_retry="Stripe-Should-Retry", methods=["POST"]),
    ],
    max_attempts=5,
    deadline="30s",
    hedge_after=0.5,
    journal=journal,
    observers=[observe],
    budgets=Budgets(),
)


def token() -> Mapping[str, str]:
    return {"Authorization": "Bearer …"}


async def fetched() -> dict[str, str]:
    return {"Authorization": "Bearer …"}


client = httpx.Client(transport=RetryTransport(calls, refresh=token))
aclient = httpx.AsyncClient(
    transport=AsyncRetryTransport(calls, httpx.AsyncHTTPTransport(http2=False), refresh=fetched)
)
other = httpx.AsyncClient(transport=AsyncRetryTransport(calls, refresh=token))
session = requests.Session()
session.mount("https://", RetryAdapter(calls, HTTPAdapter(pool_maxsize=50), refresh=token))


def after_a_restart() -> list[Resumed]:
    found = [*resume(client, journal), *resume_session(session, journal)]
    return [one for one in found if isinstance(one.error, RequestOutcomeUnknown)]


async def after_an_async_restart() -> list[bytes]:
    return [one.entry.body async for one in aresume(aclient, journal)]
