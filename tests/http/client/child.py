"""Child processes that send or resume: ``python -m tests.http.client.child ROLE SENDER JOURNAL URL``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import requests

from retrysafe.http.client import Host, Journal, Retries
from retrysafe.http.client.hosts import origin_of
from tests.http.client.senders import SENDERS, Sender

BODY = b'{"amount": 17}'


class Deadly:
    """An inner transport that dies as the first byte would leave."""

    def __init__(self, *_: Any) -> None:
        self.max_retries = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.die()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.die()

    def send(self, request: requests.PreparedRequest, **_: Any) -> Any:
        return self.die()

    def die(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def sends(sender: Sender, journal: Journal, url: str) -> None:
    """Send one request, and say what came."""
    sender.post(url, BODY, content_type="application/json", authorization="Bearer secret", x_trace="t1")
    print("answered", flush=True)


def resumes(sender: Sender, journal: Journal, url: str) -> None:
    """Resume once told to, and say how many were answered."""
    print("ready", flush=True)
    sys.stdin.readline()
    found = sender.resume(journal, time.time)
    assert all(one.error is None for one in found), found
    print(len(found), flush=True)


ROLES: dict[str, Callable[[Sender, Journal, str], None]] = {"sends": sends, "dies": sends, "resumes": resumes}


def main() -> None:
    role, name, path, url = sys.argv[1:]
    journal = Journal(path)
    inner = {"inner": Deadly()} if role == "dies" else {}
    sender = SENDERS[name](Retries([Host(origin_of(url))], journal=journal, observers=()), **inner)
    ROLES[role](sender, journal, url)


if __name__ == "__main__":
    main()
