"""A client of the standard library that retries as the rules say; and told to, does it wrong in one way."""

from __future__ import annotations

import http.client
import os
import sys
import time
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

WRONG = sys.argv[1] if len(sys.argv) > 1 else ""


def ask(key: str, body: bytes) -> Any:
    url = urlsplit(os.environ["RETRYSAFE_UPSTREAM"])
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=1)
    headers = {} if WRONG == "no key" else {"Idempotency-Key": f'"{key}"'}
    try:
        connection.request("POST", url.path, body, headers)
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        return None
    return response


def pause(response: Any) -> float:
    told = None if response is None else response.headers["Retry-After"]
    if told is None or WRONG == "hasty":
        return 0.01
    return float(told) if told.isdigit() else parsedate_to_datetime(told).timestamp() - time.time()


def main() -> None:
    if WRONG == "silent":
        return
    key, attempts = str(uuid4()), 10**6 if WRONG == "for ever" else 3
    for attempt in range(attempts):
        response = ask(key, str(attempt if WRONG == "other body" else 0).encode())
        if response is not None and response.status < 500 and response.status not in (409, 429):
            if response.status != 422 or WRONG != "insists":
                return
            key = str(uuid4())
        if response is not None and response.headers["Idempotent-Replayed"] and WRONG != "deaf":
            return
        if WRONG == "new keys":
            key = str(uuid4())
        if WRONG == "gives up":
            return
        time.sleep(pause(response))


main()
