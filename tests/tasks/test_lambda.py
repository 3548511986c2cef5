"""Lambda functions: by the rules of batches in this process, and under the runtime client of AWS."""

from __future__ import annotations

import base64
import itertools
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, InProgress, KeyReused, current
from retrysafe.http import api_gateway
from retrysafe.tasks import aws_lambda
from tests.processes import ROOT, environment
from tests.tables import each_row

_names = itertools.count()


class Context:
    """The second argument of a handler."""

    aws_request_id = "invocation"

    def __init__(self, *left: int) -> None:
        self.left = list(left) or [3000]

    def get_remaining_time_in_millis(self) -> int:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Boundary]:
    made = Boundary(f"shop {next(_names)}", store=f"sqlite:///{tmp_path / 'keys.db'}", observers=[], permanent=KeyError)
    yield made
    made.close()


def record(order: str, *, amount: int = 1, times: int = 1, group: str | None = None) -> dict[str, Any]:
    attributes = {"ApproximateReceiveCount": str(times), **({} if group is None else {"MessageGroupId": group})}
    body = json.dumps({"order_id": order, "amount": amount})
    return {"messageId": f"m-{order}", "receiptHandle": os.urandom(4).hex(), "body": body, "attributes": attributes}


def failed(answer: dict[str, Any]) -> list[str]:
    return [one["itemIdentifier"].removeprefix("m-") for one in answer["batchItemFailures"]]


def handler_of(boundary: Boundary, ran: list[str], **options: Any) -> Callable[..., Any]:
    @aws_lambda.batch(boundary, key="body.order_id", operation=f"charge {next(_names)}", **options)
    def handler(record: dict[str, Any]) -> str:
        order: str = record["body"]["order_id"]
        ran.append(order)
        if order.startswith("bad"):
            raise ValueError(order)
        if order.startswith("never"):
            raise KeyError(order)
        return order

    return handler


def test_a_batch_reports_the_records_that_have_to_come_again(shop: Boundary) -> None:
    ran: list[str] = []
    handler = handler_of(shop, ran)
    event = {"Records": [record("a"), record("bad"), record("never"), record("b")]}
    assert failed(handler(event, Context())) == ["bad"]  # "never" is a dead letter of ours
    assert failed(handler({"Records": [record("a", times=2), record("bad", times=2)]}, Context())) == ["bad"]
    assert ran == ["a", "bad", "never", "b", "bad"]
    assert failed(handler({"Records": [record("a", amount=2)]}, Context())) == []  # another body: a dead letter, too
    fifo = [record("x", group="1"), record("bad2", group="1"), record("y", group="1"), record("z", group="2")]
    assert failed(handler({"Records": fifo}, Context())) == ["bad2", "y"]


def test_records_for_which_no_time_is_left_are_not_begun(shop: Boundary) -> None:
    ran: list[str] = []
    handler = handler_of(shop, ran)
    assert failed(handler({"Records": [record("a"), record("b")]}, Context(5, 0))) == ["b"]
    assert ran == ["a"]


def test_a_record_that_no_store_can_keep_is_left_to_the_queues_own_dead_letters() -> None:
    boundary = Boundary("without letters", store="memory://", observers=[], permanent=KeyError)
    ran: list[str] = []
    handler = handler_of(boundary, ran)
    assert [failed(handler({"Records": [record("never", times=n)]}, Context())) for n in (1, 2)] == [["never"]] * 2
    assert ran == ["never"]
    boundary.close()


def test_the_lease_is_as_long_as_the_invocation(shop: Boundary) -> None:
    """No heartbeat renews it: the process is frozen between two invocations."""
    seen: list[tuple[float, object]] = []

    @aws_lambda.once(shop, key="id")
    def handle(event: dict[str, Any], context: Any) -> str:
        held = current()._held
        assert held is not None
        seen.append((held.seconds, held.heartbeat))
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - that of the handler
        handle({"id": "e", "detail": {}}, Context(7000))
    assert seen == [(8.0, None)]
    with pytest.raises(InProgress, match="No time"):
        handle({"id": "e", "detail": {}}, Context(0))


def test_an_event_is_answered_once(shop: Boundary) -> None:
    handle = aws_lambda.once(shop, key="id", operation="ship")(lambda event, context: event["detail"])
    assert handle({"id": "1", "detail": 1}, Context()) == handle({"id": "1", "detail": 1}, Context()) == 1
    with pytest.raises(KeyReused):
        handle({"id": "1", "detail": 2}, Context())
    with pytest.raises(ConfigurationError, match=r"api_gateway\.idempotent"):
        handle({"id": "1", "requestContext": {}}, Context())
    with pytest.raises(ConfigurationError, match="'event'"):
        aws_lambda.once(shop, key="id")(lambda other, context: None)


def request_2(path: str, user: str, key: str, body: str) -> dict[str, Any]:
    """A request of an HTTP API or a function URL."""
    context = {"http": {"method": "POST"}, "user": user}
    return {"version": "2.0", "rawPath": path, "requestContext": context, "body": body, **_head(key)}


def request_1(path: str, user: str, key: str, body: str) -> dict[str, Any]:
    """A request of a REST API, with the names of its headers as the client wrote them."""
    several = {name.title(): [value] for name, value in _head(key)["headers"].items()}
    context = {"user": user}
    return {"httpMethod": "POST", "path": path, "requestContext": context, "body": body, "multiValueHeaders": several}


def request_of_balancer(path: str, user: str, key: str, body: str) -> dict[str, Any]:
    text = base64.b64encode(body.encode()).decode()
    context = {"elb": {}, "user": user}
    given = {"httpMethod": "POST", "path": path, "requestContext": context, "body": text, "isBase64Encoded": True}
    return {**given, **_head(key)}


def _head(key: str) -> dict[str, dict[str, str]]:
    return {"headers": {"idempotency-key": key} if key else {}}


@each_row("form", [request_2, request_1, request_of_balancer])
def test_a_request_has_the_contract_of_http(shop: Boundary, form: Callable[..., dict[str, Any]]) -> None:
    ran: list[str] = []
    answers: dict[str, Any] = {
        "/paid": {"statusCode": 201, "headers": {"X-Order": "7"}, "body": "paid"},
        "/many": {
            "statusCode": 200,
            "multiValueHeaders": {"link": ["a", "b"]},
            "body": "/w==",
            "isBase64Encoded": True,
        },
        "/cookie": {"statusCode": 200, "cookies": ["seen=1"], "body": ""},
        "/plain": {"order": Decimal("7.5")},
        "/named": {"statusCode": 200, "headers": {"x-name": "日本"}, "body": ""},
        "/gone": {"statusCode": 404, "body": "none"},
        "/busy": {"statusCode": 503, "body": ""},
    }

    @api_gateway.idempotent(shop, principal=lambda event: event["requestContext"]["user"])
    def handle(event: dict[str, Any], context: Any) -> Any:
        ran.append(event.get("rawPath") or event["path"])
        return answers[ran[-1]]

    def call(path: str, key: str, *, user: str = "ann", body: str = "") -> tuple[int, str, dict[str, str]]:
        answer = handle(form(path, user, f"{form.__name__}-{key}" if key else "", body), Context())
        several = {name: ", ".join(values) for name, values in answer.get("multiValueHeaders", {}).items()}
        return answer["statusCode"], answer["body"], {**several, **answer.get("headers", {})}

    assert call("/paid", "k")[:2] == (201, "paid")
    status, body, headers = call("/paid", "k")
    assert (status, body, headers["x-order"], headers["idempotent-replayed"]) == (201, "paid", "7", "true")
    assert call("/paid", "k", user="bob")[2].get("idempotent-replayed") is None, "another user's answer"
    assert (call("/paid", "k", body="other")[0], call("/gone", "k")[0], call("/paid", "")[0]) == (422, 422, 400)
    assert ran == ["/paid", "/paid"]
    for path, runs in (("/many", 1), ("/cookie", 1), ("/named", 1), ("/gone", 1), ("/busy", 2)):
        ran.clear()
        assert call(path, path)[:2] == call(path, path)[:2]
        assert len(ran) == runs
    assert call("/many", "/many")[2]["link"] == "a, b"
    assert call("/named", "/named")[2]["x-name"] == "日本"
    assert handle(form("/plain", "ann", f"{form.__name__}-p", ""), Context()) == {"order": 7.5}
    assert call("/plain", "p")[:2] == (200, '{"order": 7.5}')
    assert handle(form("/paid", "ann", "late", ""), Context(0))["statusCode"] == 409


def test_an_event_that_is_no_request_is_refused(shop: Boundary) -> None:
    with pytest.raises(ConfigurationError, match="principal="):
        api_gateway.idempotent(shop)
    handle = api_gateway.idempotent(shop, principal="shared")(lambda event, context: None)
    with pytest.raises(ConfigurationError, match=r"aws_lambda\.once"):
        handle({"detail": 1}, Context())


APP = """
import os, sqlite3, time
from retrysafe import Boundary, current
from retrysafe.tasks import aws_lambda
shop = Boundary("shop", store="sqlite:///keys.db", observers=[])
@aws_lambda.batch(shop, key="body.order_id")
def handler(record):
    with sqlite3.connect("ledger.db") as ledger:
        ledger.execute("INSERT INTO ledger VALUES (?, ?)", (record["body"]["order_id"], current().key_for("bank")))
    ledger.close()
    if record["body"].get("dies") and record["attributes"]["ApproximateReceiveCount"] == "1":
        os.kill(os.getpid(), 9)
"""


class Runtime(ThreadingHTTPServer):
    """The Runtime API of Lambda: it hands out invocations, and takes answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RuntimeHandler)
        self.events: SimpleQueue[tuple[dict[str, Any], float] | None] = SimpleQueue()
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.begun: list[float] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def invoke(self, *records: dict[str, Any], seconds: float = 3.0) -> Any:
        self.events.put(({"Records": records}, seconds))

    def end(self) -> None:
        """Serve no more, and leave no thread that waits for an invocation."""
        self.events.put(None)
        self.shutdown()
        self.server_close()


class RuntimeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Runtime

    def do_GET(self) -> None:
        if (invocation := self.server.events.get()) is None:
            self.server.events.put(None)
            self.close_connection = True
            return
        event, seconds = invocation
        self.server.begun.append(time.monotonic())
        body = json.dumps(event).encode()
        self.send_response(200)
        for name, value in {
            "Lambda-Runtime-Aws-Request-Id": os.urandom(4).hex(),
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + seconds) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:0:function:shop",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.answers.put(json.loads(body))
        self.send_response(202)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.slow
def test_a_function_that_is_killed_goes_on_when_the_time_of_its_invocation_is_over(tmp_path: Path) -> None:
    pytest.importorskip("awslambdaric")
    (tmp_path / "shop.py").write_text(APP)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as made, made:
        made.execute("CREATE TABLE ledger (name TEXT, key TEXT)")
    runtime = Runtime()
    env = {
        **environment(),
        "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{runtime.server_port}",
        "AWS_LAMBDA_FUNCTION_NAME": "shop",
        "AWS_LAMBDA_FUNCTION_VERSION": "1",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
        "AWS_LAMBDA_LOG_GROUP_NAME": "g",
        "AWS_LAMBDA_LOG_STREAM_NAME": "s",
        "AWS_REGION": "us-east-1",
        "LAMBDA_TASK_ROOT": str(tmp_path),
    }
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"], str(ROOT)])
    command = [sys.executable, "-m", "awslambdaric", "shop.handler"]
    dying = {**record("a"), "body": json.dumps({"order_id": "a", "dies": True})}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=tmp_path, env=env)

    first = start()
    runtime.invoke(record("before"), dying, seconds=2.0)
    assert first.wait(60) == -9
    second = start()
    try:
        again = {**dying, "attributes": {"ApproximateReceiveCount": "2"}}
        answers = []
        while not answers or answers[-1]:  # the visibility timeout of the queue is over, and again
            runtime.invoke({**record("before"), "attributes": again["attributes"]}, again)
            answers.append(failed(runtime.answers.get(timeout=60)))
            threading.Event().wait(0.2)
        assert time.monotonic() - runtime.begun[0] >= 2.0
    finally:
        second.kill()
        second.wait()
        runtime.end()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as read:
        sql = "SELECT name, count(*), count(DISTINCT key) FROM ledger GROUP BY name ORDER BY 1"
        rows = read.execute(sql).fetchall()
    assert rows == [("a", 2, 1), ("before", 1, 1)]
