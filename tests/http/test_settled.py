"""Unknown keys of HTTP requests, settled to a response by a program, an operator and a probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, Claim, ConfigurationError, OutcomeUnknown, current
from retrysafe.admin.answers import response_of
from retrysafe.admin.operator import Operator
from retrysafe.admin.rendering import details
from retrysafe.claims.encryption import Keyring
from retrysafe.cli import main
from retrysafe.console import EVERY_RIGHT, Console, Principal
from retrysafe.http import respond
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.http.messages import Response
from tests.console.visiting import Visitor
from tests.http.conftest import Place
from tests.http.wire import Exchanged, post
from tests.tables import each_row

ORDER = respond(201, {"order": 7}, headers={"Location": "/orders/7"})
GONE = respond(410, "never", headers=[("X-Why", "the card is gone")])


async def losing(scope: Any, receive: Any, send: Any) -> None:
    """An application that cannot say whether it has done its work."""
    raise TimeoutError


async def lost(app: Any, **request: Any) -> None:
    """Leave an unknown key."""
    with pytest.raises(TimeoutError):
        await post(app, **request)


def shown(answer: Exchanged) -> tuple[Any, ...]:
    return answer.status, answer.body, answer.replayed, answer.header("content-type")


async def test_r35_a_program_settles_an_unknown_key_to_a_response(place: Place) -> None:
    boundary = place.boundary(effects="external")
    app = IdempotencyMiddleware(losing, boundary, principal=lambda scope: "ann")
    for key, outcome, given, operation in (
        ("a", "completed", ORDER, "http"),
        ("b", "failed", GONE, "http: POST /orders"),  # as operators see it
    ):
        await lost(app, key=key)
        assert (await post(app, key)).code == "outcome-unknown"
        terms: Any = {"operation": operation, "scope": "ann", "reason": "found in the books"}
        for wrong in ({"order": 7}, None, "no"):
            with pytest.raises(ConfigurationError, match=r"respond\(201"):
                await boundary.aresolve(key, outcome, result=wrong, **terms)
        assert await boundary.aresolve(key, outcome, result=given, **terms)
        answer = await post(app, key)
        assert shown(answer) == (given.status, given.body, True, dict(given.headers)[b"content-type"].decode())
    await lost(app, key="c")
    with pytest.raises(ConfigurationError, match="no failure"):
        await boundary.aresolve("c", "failed", result=ORDER, operation="http", scope="ann")


@each_row("name", ["Set-Cookie", "X-Api-Key", "Connection", "Date", "bad name"])
def test_a_settled_answer_has_no_header_that_a_recorded_one_would_not_have(name: str) -> None:
    with pytest.raises(ConfigurationError, match="headers="):
        respond(201, {"order": 7}, headers={name: "s=1"})


@each_row("encrypted", [False, True])
@each_row(("outcome", "given"), [("completed", ORDER), ("failed", GONE), ("released", None)])
async def test_a_settled_key_says_who_settled_it_when_and_why(
    tmp_path: Path, outcome: Any, given: Response | None, *, encrypted: bool
) -> None:
    store = f"sqlite:///{tmp_path}/keys.db"
    keyring = Keyring({"one": b"k" * 32}) if encrypted else None
    boundary = Boundary(f"told {encrypted} {outcome}", store=store, effects="external", encryption=keyring)
    app = IdempotencyMiddleware(losing, boundary, principal="shared")
    await lost(app, key="k")
    with Operator(store, actor="ann", observers=(), encryption=keyring) as operator:
        (seen,) = operator.find(states=["unknown"])
        assert details(operator.show(seen.key))["settled_by"] is None
        assert operator.resolve(seen, outcome, result=given, reason="seen at the bank: " + "é" * 200).done
        record = operator.show(seen.key)
        told = details(record)
        assert told["settled_by"] == "operator ann"
        assert told["settled_because"].startswith("seen at the bank: é")
        assert f"settled as {outcome} by operator ann at {told['updated']}" in told["why"]
        plain = operator.plain(record)
        assert (plain is None) == (given is None)
    if given is not None:
        assert shown(await post(app))[:3] == (given.status, given.body, True)
    else:
        await lost(app, key="k")
        with Operator(store, observers=(), encryption=keyring) as operator:
            assert details(operator.show(seen.key))["settled_by"] is None, "another attempt has ended since"
    await boundary.aclose()


async def test_r35_a_probe_gives_the_response(tmp_path: Path) -> None:
    def probe(claim: Claim) -> None:
        claim.respond(201, {"order": 7}, headers={"Location": "/orders/7"})

    boundary = Boundary("probed", store=f"sqlite:///{tmp_path}/keys.db", effects="external", probe=probe)
    app = IdempotencyMiddleware(losing, boundary, principal="shared")
    await lost(app)
    answer = await post(app)
    assert (shown(answer), answer.header("location")) == ((201, b'{"order":7}', True, "application/json"), "/orders/7")
    with pytest.raises(TimeoutError), boundary.claim("other"):
        raise TimeoutError
    with pytest.raises(OutcomeUnknown, match="answers HTTP requests"), boundary.claim("other"):
        pass
    with Operator(f"sqlite:///{tmp_path}/keys.db", observers=()) as operator:
        (record,) = operator.find(operation="http")
        assert details(operator.show(record.key))["settled_by"] == "a probe"
    await boundary.aclose()


async def test_r35_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path}/keys.db"
    boundary = Boundary("commanded", store=store, effects="external")
    app = IdempotencyMiddleware(losing, boundary, principal="shared")
    (tmp_path / "body").write_bytes(b"\x00raw")
    asked = ["keys", "resolve", "k", "--as", "completed", "--store", store]
    wrong = {
        ("--result", "{}"): "belong to HTTP requests",
        (): "or, for the key of an HTTP request, the --status",
        ("--body", "x"): "give its --status too",
        ("--status", "99"): "from 200 to 599",
        ("--status", "201", "--result", "1"): "does not go with --result",
        ("--status", "201", "--header", "no colon"): "no header",
        ("--status", "201", "--header", "Date: now"): "is made anew",
        ("--status", "201", "--body", "x", "--body-file", "y"): "two bodies",
    }
    await lost(app)
    for options, complaint in wrong.items():
        assert main([*asked, *options]) == 2
        assert complaint in capsys.readouterr().err
    body = ("--body-file", str(tmp_path / "body"), "--content-type", "image/png")
    assert main([*asked, "--status", "201", "--header", "Location: /orders/7", *body, "--reason", "seen"]) == 0
    answer = await post(app)
    assert (shown(answer), answer.header("location")) == ((201, b"\x00raw", True, "image/png"), "/orders/7")
    assert main(["keys", "show", "k", "--store", store]) == 0
    assert "because: seen" in capsys.readouterr().out
    with pytest.raises(TimeoutError), boundary.claim("plain"):
        raise TimeoutError
    assert main(["keys", "resolve", "plain", "--as", "completed", "--status", "201", "--store", store]) == 2
    assert "belong to no HTTP request" in capsys.readouterr().err
    await boundary.aclose()


async def test_r35_from_the_console(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/keys.db"
    boundary = Boundary("seen", store=store, effects="external")
    app = IdempotencyMiddleware(losing, boundary, principal="shared")
    await lost(app)
    visitor = Visitor(Console(store, access=lambda request: Principal("ada", EVERY_RIGHT), audit=lambda entry: None))
    page = await visitor.submit(await visitor.get("/"), "/keys/find", {"key": "k"})
    form = {"outcome": "completed", "reason": "seen", "headers": "Location: /orders/7", "body": '{"order": 7}'}
    for status in ("", "99", "no"):
        assert (await visitor.submit(page, "/resolve", {**form, "status": status})).status == 400
    assert (await visitor.submit(page, "/resolve", {**form, "status": "201"})).status == 200
    answer = await post(app)
    told = shown(answer), answer.header("location")
    assert told == ((201, b'{"order": 7}', True, "application/json"), "/orders/7")
    await visitor.close()
    await boundary.aclose()


async def test_the_client_of_a_run_that_was_given_up_is_told_why(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/keys.db"
    boundary = Boundary("trips", store=store, effects="keyed", permanent=ValueError)
    errors: list[Exception] = [OSError("no paper"), ValueError("a secret of the server's")]

    async def book(scope: Any, receive: Any, send: Any) -> None:
        current().step("flight", str, "LH1", undo=str)
        raise errors[0]

    app = IdempotencyMiddleware(book, boundary, principal="shared")
    with pytest.raises(OSError, match="no paper"):
        await post(app)
    with Operator(store, observers=()) as operator:
        (seen,) = operator.find(operation="http")
        assert operator.cancel_run(operator.show_run(seen), reason="the customer has left").done
    for _ in range(2):
        answer = await post(app)
        assert (answer.status, answer.code) == (409, "result-unavailable")
        assert b"Cancelled: the customer has left. It was not run again" in answer.body
    errors.pop(0)
    with pytest.raises(ValueError, match="secret"):
        await post(app, "other")
    assert b"secret" not in (await post(app, "other")).body
    await boundary.aclose()


@each_row(
    ("text", "expected"),
    [
        ("201\nLocation: /7\nContent-Type: text/x\n\nbody\n\nmore", (201, {b"location": b"/7"}, b"body\n\nmore")),
        ("204", (204, {}, b"")),
        ('201\n\n{"a": 1}', (201, {b"content-type": b"application/json"}, b'{"a": 1}')),
        ("204\n\nbody", None),
        ("404\r\n\r\nno", (404, {b"content-type": b"text/plain; charset=utf-8"}, b"no")),
        ("order 7", None),
        ("", None),
        ("201\nno header", None),
    ],
)
def test_a_response_is_written_as_on_the_wire(text: str, expected: Any) -> None:
    if expected is None:
        with pytest.raises(ValueError, match=r"status|header"):
            response_of(text)
        return
    found = response_of(text)
    status, headers, body = expected
    assert (found.status, found.body) == (status, body)
    assert headers.items() <= dict(found.headers).items()
