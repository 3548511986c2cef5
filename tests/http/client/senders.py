"""The three transports behind one face, so that every rule is one test over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import httpx
import requests

from retrysafe.http.client import Environment, Journal, Resumed, Retries
from retrysafe.http.client.httpx import AsyncRetryTransport, RetryTransport, aresume
from retrysafe.http.client.httpx import resume as resume_httpx
from retrysafe.http.client.requests import RetryAdapter
from retrysafe.http.client.requests import resume as resume_requests

FAILURES = (httpx.TransportError, requests.RequestException)


class Got(NamedTuple):
    """A response."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Time:
    """A clock that stands still but for sleep; chance as it is set."""

    def __init__(self, chance: float = 1.0) -> None:
        self.now = 1000.0
        self.offset = 1_700_000_000.0
        self.chance = chance
        self.slept: list[float] = []
        self.keys = iter(range(10**9))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    @property
    def environment(self) -> Environment:
        return Environment(
            clock=lambda: self.now,
            wall=lambda: self.offset + self.now,
            chance=lambda: self.chance,
            sleep=self.sleep,
            asleep=self.asleep,
        )


class Sender:
    """A client of one library."""

    name: str

    def send(self, method: str, url: str, *, body: Any = b"", headers: Mapping[str, str] | None = None) -> Got:
        raise NotImplementedError

    def post(self, url: str, body: Any = b'{"amount": 1}', **headers: str) -> Got:
        return self.send("POST", url, body=body, headers={name.replace("_", "-"): headers[name] for name in headers})

    def resume(self, journal: Journal, wall: Callable[[], float], **how: Any) -> list[Resumed]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Sync(Sender):
    name = "httpx"

    def __init__(self, retries: Retries, refresh: Any = None, timeout: float = 10, **client: Any) -> None:
        inner = client.pop("inner", None)
        self.client = httpx.Client(
            transport=RetryTransport(retries, inner, refresh=refresh), timeout=timeout, trust_env=False, **client
        )

    def send(self, method: str, url: str, *, body: Any = b"", headers: Mapping[str, str] | None = None) -> Got:
        with self.client.stream(method, url, content=body or None, headers=headers) as response:
            response.read()
        return Got(response.status_code, response.content, response.headers)

    def resume(self, journal: Journal, wall: Callable[[], float], **how: Any) -> list[Resumed]:
        return list(resume_httpx(self.client, journal, wall=wall, **how))

    def close(self) -> None:
        self.client.close()


class Async(Sender):
    name = "httpx-async"

    def __init__(self, retries: Retries, refresh: Any = None, timeout: float = 10, **client: Any) -> None:
        self.runner = asyncio.Runner()
        inner = client.pop("inner", None)
        self.client = httpx.AsyncClient(
            transport=AsyncRetryTransport(retries, inner, refresh=refresh), timeout=timeout, trust_env=False, **client
        )

    def send(self, method: str, url: str, *, body: Any = b"", headers: Mapping[str, str] | None = None) -> Got:
        if not isinstance(body, bytes) and body:
            body = _again(body)

        async def sent() -> Got:
            response = await self.client.request(method, url, content=body or None, headers=headers)
            return Got(response.status_code, response.content, response.headers)

        return self.runner.run(sent())

    def resume(self, journal: Journal, wall: Callable[[], float], **how: Any) -> list[Resumed]:
        async def all_of_them() -> list[Resumed]:
            return [one async for one in aresume(self.client, journal, wall=wall, **how)]

        return self.runner.run(all_of_them())

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()


async def _again(parts: Iterable[bytes]) -> Any:
    for part in parts:
        yield part


class Requests(Sender):
    name = "requests"

    def __init__(self, retries: Retries, refresh: Any = None, timeout: float = 10, **client: Any) -> None:
        self.session = requests.Session()
        self.session.trust_env = False
        self.timeout = timeout
        adapter = RetryAdapter(retries, client.pop("inner", None), refresh=refresh)
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, adapter)
        for name, value in client.items():
            getattr(self.session, name).update(value)

    def send(self, method: str, url: str, *, body: Any = b"", headers: Mapping[str, str] | None = None) -> Got:
        sent = requests.Request(method, url, data=body or None, headers=dict(headers or {}))
        response = self.session.send(self.session.prepare_request(sent), timeout=self.timeout)
        return Got(response.status_code, response.content, response.headers)

    def resume(self, journal: Journal, wall: Callable[[], float], **how: Any) -> list[Resumed]:
        return list(resume_requests(self.session, journal, wall=wall, **how))

    def close(self) -> None:
        self.session.close()


SENDERS: dict[str, Callable[..., Sender]] = {"httpx": Sync, "httpx-async": Async, "requests": Requests}
