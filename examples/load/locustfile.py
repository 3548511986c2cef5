"""Three profiles for Locust: a retry storm, a hot key and a flood of keys. Name the one to run.

``locust -f locustfile.py RetryStorm --headless --users 20 --run-time 30s --host http://127.0.0.1:8000``

The exit code is 1 if a request failed, if nothing was answered, if one key got two answers, or if the audit has a key
that was charged twice.
Variables: LOAD_PATH (the guarded endpoint), LOAD_AUDIT (the endpoint of the audit, or "none") and LOAD_REQUESTS (stop
after so many).
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections import Counter, OrderedDict
from typing import Any
from urllib.request import urlopen

import gevent
from locust import FastHttpUser, constant, events, task
from locust.runners import LocalRunner, WorkerRunner

PATH = os.environ.get("LOAD_PATH", "/charges")
AUDIT = os.environ.get("LOAD_AUDIT", "/audit")
MOST_REQUESTS = int(os.environ.get("LOAD_REQUESTS", "0"))
COPIES = 5
REMEMBERED = 100_000
REFUSALS = {"in-progress", "quota-exceeded"}
"""Answers that tell a caller to try again with the same key: nothing was done."""
RUN = uuid.uuid4().hex
_LOG = logging.getLogger("retrysafe.load")

answers: OrderedDict[str, str] = OrderedDict()
"""The first answer of each key; what comes later must be the same."""
said: Counter[str] = Counter()
before: dict[str, int] = {}
"""The audit at the beginning of the run."""


def body(key: str) -> dict[str, Any]:
    """The request; the same one for the same key. Put yours here."""
    return {"amount": 1 + sum(key.encode()) % 100}


class Caller(FastHttpUser):
    """Sends requests with keys, and judges their answers."""

    abstract = True
    wait_time = constant(0)
    concurrency = COPIES

    def send(self, key: str, name: str, *, settled: bool = False) -> None:
        """Send the request of a key, and judge the answer; ``settled``: its work has ended, so that there is one."""
        headers = {"Idempotency-Key": key}
        with self.client.post(PATH, json=body(key), headers=headers, name=name, catch_response=True) as response:
            fault = judge(key, response.status_code, response.text or "", settled=settled)
            if fault:
                response.failure(fault)
            else:
                response.success()


def judge(key: str, status: int, text: str, *, settled: bool) -> str | None:
    """Name the fault of an answer; None if it is right."""
    if 200 <= status < 300:
        first = answers.setdefault(key, text)
        if len(answers) > REMEMBERED:
            answers.popitem(last=False)
        what = "first answer" if first is text else "same answer again" if first == text else "another answer"
        said[what] += 1
        return None if first == text else "one key got two answers"
    code = code_of(text)
    if code in REFUSALS and not settled:
        said[code] += 1
        return None
    return f"status {status} {code}".strip()


def code_of(text: str) -> str:
    """The code of a problem, as RFC 9457's extension has it."""
    try:
        problem = json.loads(text)
    except ValueError:
        return ""
    return str(problem.get("code", "")) if isinstance(problem, dict) else ""


class RetryStorm(Caller):
    """Callers that do not wait for their answers: five copies of each request at once, and one more behind them."""

    @task
    def storm(self) -> None:
        """One intent."""
        key = uuid.uuid4().hex
        gevent.joinall([gevent.spawn(self.send, key, "copy") for _ in range(COPIES)])
        self.send(key, "retry", settled=key in answers)


class HotKey(Caller):
    """Every caller sends the same key, which is another one each second."""

    @task
    def hot(self) -> None:
        """One request."""
        self.send(f"{RUN}-{int(time.time())}", "hot key")


class KeyFlood(Caller):
    """A new key with every request, as of a client that makes one for each attempt."""

    @task
    def flood(self) -> None:
        """One request."""
        self.send(uuid.uuid4().hex, "new key")


# ---------------------------------------------------------------- the end of a run


@events.init.add_listener
def stop_after_requests(environment: Any, **_: Any) -> None:
    """Stop when so many requests were sent, if a number was given."""
    if not MOST_REQUESTS or isinstance(environment.runner, WorkerRunner):
        return

    def count(**_: Any) -> None:
        if environment.stats.total.num_requests + 1 == MOST_REQUESTS:
            gevent.spawn(environment.runner.quit)

    environment.events.request.add_listener(count)


@events.test_start.add_listener
def look_before(environment: Any, **_: Any) -> None:
    """Remember what the audit has from earlier runs."""
    if AUDIT != "none" and not isinstance(environment.runner, WorkerRunner):
        before.update(audited(environment.host))


@events.quitting.add_listener
def look_after(environment: Any, **_: Any) -> None:
    """Ask the application whether this run had a key charged twice."""
    if isinstance(environment.runner, WorkerRunner):
        return
    _LOG.info("answers: %s", dict(said))
    if isinstance(environment.runner, LocalRunner) and not said["first answer"]:
        _LOG.error("no request was answered with a result")
        environment.process_exit_code = 1
    if AUDIT != "none":
        found = audited(environment.host)
        _LOG.info("audit: %s, before: %s", found, before)
        twice = found["charged_twice"] - before.get("charged_twice", 0)
        if twice:
            _LOG.error("%s keys were charged twice", twice)
            environment.process_exit_code = 1


def audited(host: str) -> dict[str, int]:
    """Ask the endpoint of the audit."""
    with urlopen(host + AUDIT) as response:
        found: dict[str, int] = json.load(response)
    return found
