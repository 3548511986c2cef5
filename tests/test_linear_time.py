"""Readers of a peer's bytes take time in proportion to their number: rule R34 of the HTTP contract.

Regular expressions are judged by their structure (`tests.ambiguity`), scanners written in Python by the instructions
of the interpreter that they run for inputs of growing length. No clock is read.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import retrysafe
from retrysafe.errors import RetrysafeError
from retrysafe.gateway import fields
from retrysafe.gateway.fields import Hop
from retrysafe.http import bodies, conditional, key_header, messages
from retrysafe.http.client import bodies as client_bodies
from retrysafe.http.client import policy, redirects
from retrysafe.http.client.redirects import RequestTarget
from retrysafe.http.client.results import ServerAnswer
from retrysafe.http.messages import Headers, Request
from retrysafe.http.problems import Refusal
from retrysafe.http.routes import Routes
from retrysafe.messaging import cloudevents
from retrysafe.webhooks import GitHub, Head, Scheme, Slack, StandardWebhooks, Stripe, delivering
from retrysafe.webhooks.deliveries import document_of
from tests.ambiguity import is_ambiguous, patterns
from tests.tables import each_row

SOURCE = Path(retrysafe.__file__).parent
SEARCHES = ("search", "sub", "subn", "split", "findall", "finditer")
OURS = {
    "backends/urls.py: _OPTIONS": "reads addresses of an operator's configuration",
    "backends/urls.py: _PASSWORD": "reads addresses of an operator's configuration",
    "backends/urls.py: _SECRET": "reads addresses of an operator's configuration",
    "claims/decorator.py: findall": "reads the name of a parameter in a program",
    "cli/options.py: findall": "reads what the user of the command line typed",
    "cli/options.py: search": "reads what the user of the command line typed",
    "messaging/brokers/options.py: findall": "reads docstrings of ours",
    "backends/sql/mysql.py: findall": "reads the version of the database",
    "scan/symbols.py: _TOKEN": "reads the patterns of our catalogue",
    "testing/crashing/exploring.py: findall": "reads labels of ours",
    "testing/crashing/instruments.py: _VOLATILE": "reads labels of ours",
}
"""Expressions that are ambiguous when a text is searched; no peer chooses what they read."""
LINEAR = {
    "cli/brokers.py: sub": "it begins at the beginning of a word",
    "messaging/error_kinds.py: _VARYING": "each part begins at the beginning of a word, or matches at the first digit",
    "scan/effects.py: _ADDED": "it begins at the beginning of a word, and every repetition is possessive",
}
"""Expressions that are taken for ambiguous, because the analysis does not look at what stands around a match."""


def compiled() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """The expressions that modules keep."""
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "re.compile(" in source:
            where = path.relative_to(SOURCE)
            module = importlib.import_module(".".join(["retrysafe", *where.with_suffix("").parts]))
            for name, pattern in patterns(vars(module).items()):
                if f"{name} = " in source:
                    yield f"{where}: {name}", pattern, any(f"{name}.{verb}(" in source for verb in SEARCHES)


def inline() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """The expressions that stand where they are used; a pattern that is put together at run time is none of them."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Attribute(ast.Name("re"), verb), [ast.Constant(str() | bytes() as text), *_]):
                    if verb != "compile":
                        yield f"{path.relative_to(SOURCE)}: {verb}", re.compile(text), verb in SEARCHES


def test_no_regular_expression_can_be_matched_in_many_ways() -> None:
    found = [*compiled(), *inline()]
    assert len(found) > 30
    wrong = [where for where, pattern, searched in found if is_ambiguous(pattern, searched=searched)]
    assert [where for where in wrong if where not in OURS | LINEAR] == []


@each_row(
    "expression",
    [r"(a*)*b", r"a*a*b", r"(a?b?)*c", r"(?:ab|a|b)*c", r"[ ]*(x)?[ ]*,", r"0*[0-9]{1,19}[0-9]*x", r"(?i)a*A*b"],
)
def test_the_analysis_finds_what_is_ambiguous(expression: str) -> None:
    assert is_ambiguous(re.compile(expression))


@each_row("expression", [r"a*b*c", r"a*+a*+b", r"(?:[ ]*;[a]+)*", r"(?:[ab]|c)*+d", r"a+\d+"])
def test_the_analysis_lets_the_others_pass(expression: str) -> None:
    assert not is_ambiguous(re.compile(expression))
    assert is_ambiguous(re.compile(r"a+b"), searched=True)


# ---------------------------------------------------------------- what is written in Python

REFUSED = (RetrysafeError, Refusal)


def work(parse: Callable[[Any], Any], given: Any) -> int:
    """Count the instructions that the interpreter runs to read something."""
    count = 0

    def tracing(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return tracing

    before = sys.gettrace()
    sys.settrace(tracing)
    try:
        with suppress(*REFUSED):
            parse(given)
    finally:
        sys.settrace(before)
    return count


def multipart(size: int) -> list[bytes]:
    return [b"--b\r\n"[: 1 + at % 5] for at in range(size)]


def hashed(chunks: list[bytes]) -> bytes:
    hash = bodies.hasher(Request("POST", b"/", b"", ((b"content-type", b"multipart/form-data; boundary=b"),)))
    for chunk in chunks:
        hash.update(chunk)
    return hash.digest()


def answer(**fields: str) -> ServerAnswer:
    return ServerAnswer(307, {name.replace("_", "-"): value for name, value in fields.items()}, "", None)


def delivered(scheme: Scheme, **fields: str) -> Any:
    lines = {name.replace("_", "-"): value for name, value in fields.items()}
    return scheme.verify(Head(lines), b"{}", 0.0)


def forwarded(lines: Headers) -> Any:
    request = Request("POST", b"/", b"", ((b"host", b"x"), *lines))
    fields.refuse_unclear(request, request.method, "1.1")
    return fields.to_upstream(request, Hop("g", "1.1", "http", None, False), host=None, key=None, length=None)


STANDARD, STRIPE = StandardWebhooks(b"secret" * 4), Stripe("whsec_1")
SLACK, GITHUB = Slack("secret"), GitHub("secret")
ROUTES = Routes({"POST /a/**/b/**/c/*/d": "required", "/**/x/**/y": "off"})

READ: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    "a key with parameters": (
        lambda value: key_header.parse([value], "lenient"),
        lambda n: b'"k"' + b";a=:a:" * n + b"(",
    ),
    "a key with escapes": (lambda value: key_header.parse([value], "lenient"), lambda n: b'"' + b"\\\\" * n),
    "a bare key": (lambda value: key_header.parse([value], "lenient"), lambda n: b"k" * n + b"\x7f"),
    "entity tags": (conditional.tags, lambda n: b'"a",' * n),
    "entity tags and spaces": (conditional.tags, lambda n: b'"a",' + b" " * n + b"x"),
    "a length": (messages.length_of, lambda n: "0" * n + "x"),
    "a boundary": (bodies.without_boundary, lambda n: b"multipart/x" + b"; " * n + b"boundary="),
    "a multipart body": (hashed, multipart),
    "a path": (lambda path: ROUTES.need("POST", path), lambda n: "/a" + "/b/c/x" * n),
    "Connection of a response": (
        lambda lines: messages.strip_fields(messages.Response(200, lines, b""), None, frozenset()),
        lambda n: tuple((b"connection", b"x%d, y" % at) for at in range(n)),
    ),
    "fields of a request": (forwarded, lambda n: tuple((b"x-%d" % at, b"a, b") for at in range(n))),
    "Connection of a request": (forwarded, lambda n: tuple((b"connection", b"x%d" % at) for at in range(n))),
    "a signature of Standard Webhooks": (
        lambda value: delivered(STANDARD, webhook_id="m", webhook_timestamp="0", webhook_signature=value),
        lambda n: "v1,x " * n,
    ),
    "a signature of Stripe": (lambda value: delivered(STRIPE, Stripe_Signature=value), lambda n: "t=1,v1=x," * n),
    "a signature of Slack": (
        lambda value: delivered(SLACK, X_Slack_Request_Timestamp=value, X_Slack_Signature="v0=x"),
        lambda n: "1" * n,
    ),
    "a signature of GitHub": (lambda value: delivered(GITHUB, X_Hub_Signature_256=value), lambda n: "sha256=" * n),
    "a nested document": (lambda value: document_of(Head({}), value), lambda n: b"[" * n),
    "a Retry-After": (lambda value: policy.retry_after(answer(retry_after=value), 0.0), lambda n: "1" * n),
    "a Retry-After of dates": (
        lambda value: policy.retry_after(answer(retry_after=value), 0.0),
        lambda n: "Mon, " * n,
    ),
    "a webhook's Retry-After": (lambda value: delivering.retry_after(value, value, 0.0), lambda n: "1 Jan " * n),
    "a Location": (
        lambda value: redirects.follow(RequestTarget("GET", "http://a/b", False), answer(location=value)),
        lambda n: "../" * n + "x",
    ),
    "a Location's host": (
        lambda value: redirects.follow(RequestTarget("GET", "http://a/b", False), answer(location=value)),
        lambda n: "http://" + "\u00e9" * n + "/",
    ),
    "a problem document": (
        lambda value: client_bodies.problem_code("application/problem+json", value),
        lambda n: b"[" * n,
    ),
    "a length of a response": (
        lambda value: client_bodies.is_read_whole({"content-length": value}, keyed=True, limit=1),
        lambda n: "1" * 4 * n,
    ),
    "a sequence of a message": (
        lambda value: cloudevents.read_event({"sequence": value}, b"", "t"),
        lambda n: "-" + "1" * n,
    ),
}


@each_row("what", READ)
def test_the_work_grows_with_the_length_and_no_faster(what: str) -> None:
    parse, of_length = READ[what]
    work(parse, of_length(400))  # imports and caches
    small, large = work(parse, of_length(401)), work(parse, of_length(4 * 401))
    assert large <= 5 * small + 1000, (small, large)
