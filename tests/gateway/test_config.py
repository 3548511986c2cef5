"""The configuration file: every name is known or an error that says where; routes from a file or from OpenAPI."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retrysafe import ConfigurationError
from retrysafe.cli import main
from retrysafe.errors import SchemaOutdated
from retrysafe.gateway import Claims, Route, Settings, Timeouts, TrustedHeader
from retrysafe.gateway.config import parse
from retrysafe.gateway.guards import Guards
from retrysafe.gateway.openapi import routes_of
from retrysafe.gateway.serving import check_store, settings_of
from retrysafe.http.messages import Request
from tests.faults.helpers import own_database
from tests.gateway.upstreams import OK, always, before
from tests.tables import each_row

WHOLE = """
upstream = "http://127.0.0.1:3000/prefix"
store = "memory://"
name = "shop"
listen = "[::1]:8080"
grace = "10s"
connections = 20
idle = "2s"
host = "upstream"
trust_forwarded = true

[admin]
listen = "127.0.0.1:9090"

[timeouts]
connect = "2s"
read = 30

[principal]
header = "X-User"
from = ["10.0.0.0/8", "::1/128"]

[defaults]
window = "48h"
response_limit = "2 MiB"

[[routes]]
match = "POST /payments/{id}/refunds"
key = "required"
effects = "keyed"
concurrency = "5s"
forward_key = "bare"
unexecuted = [503]
key_policy = "uuid"
timeouts = { total = "1m" }

[[routes]]
match = "/internal/**"
key = "off"
"""


def test_a_whole_file() -> None:
    settings = parse(WHOLE).settings()
    assert settings.listen == ("::1", 8080)
    assert settings.admin == ("127.0.0.1", 9090)
    assert (settings.name, settings.grace, settings.connections, settings.idle) == ("shop", 10, 20, 2)
    assert (settings.host, settings.trust_forwarded) == ("upstream", True)
    assert isinstance(settings.principal, TrustedHeader)
    assert [str(network) for network in settings.principal.trusted] == ["10.0.0.0/8", "::1/128"]
    assert settings.defaults.effects == "external", "what a gateway can promise of any service"
    refunds, internal = settings.routes
    assert (refunds.key, refunds.effects, refunds.concurrency, refunds.forward_key) == ("required", "keyed", 5, "bare")
    assert (refunds.window, refunds.unexecuted) == (48 * 3600, {503})
    assert refunds.timeouts == Timeouts(2, 30, 60)
    assert refunds.options == {"key_policy": "uuid", "response_limit": 2 << 20}
    assert internal.key == "off"


WRONG = [
    ("upstrem = 'x'", "line 1: upstrem: there is no such setting; did you mean upstream?"),
    (
        "\n\n[timeouts]\nconnect = 1\nraed = 2",
        "line 5: raed of [timeouts]: there is no such setting; did you mean read?",
    ),
    ("[[routes]]\nmatch='/a'\n[[routes]]\nmatch='/b'\nwindo='1s'", "line 5: windo of [routes]"),
    ("[[routes]]\nmatch='/a'\ntimeouts = { conect = 1 }", "line 3: conect of [routes.timeouts]"),
    ("[[routes]]\nmatch='/a'\nrequired = true", "line 3: required of [routes]: there is no such setting"),
    ("[defaults]\nwindow = 'soon'", "line 2: window of [defaults]"),
    ("[defaults]\nkey = 'maybe'", "line 2: key of [defaults]: key='maybe': expected one of required"),
    (
        "[defaults]\neffects = 'transactional'",
        "line 2: effects of [defaults]: effects='transactional': a gateway cannot",
    ),
    ("[defaults]\neffects = 'keyed'\nforward_key = 'off'", "line 2: effects of [defaults]: effects='keyed' with"),
    ("[defaults]\nunexecuted = [404]", "line 2: unexecuted of [defaults]: unexecuted names statuses from 500"),
    ("[defaults]\nunexecuted = [503]\non_5xx = 'store'", "unexecuted with on_5xx='store'"),
    ("[defaults]\nunexecuted = ['503']", "line 2: unexecuted of [defaults]"),
    ("[defaults]\nbody_limit = '1 MB'", "line 2: body_limit of [defaults]: '1 MB' is no size"),
    ("[defaults]\nkey_syntax = 'loose'", "line 2: key_syntax of [defaults]: key_syntax='loose'"),
    ("[defaults]\nconcurrency = 'queue'", "line 2: concurrency of [defaults]: 'queue' is neither"),
    ("[defaults]\ncanonical_json = 1", "line 2: canonical_json of [defaults]: 1 is neither true nor false"),
    ("[[routes]]\nkey = 'off'", "line 2: key of [routes]: the route has no match"),
    ("listen = '8080'", "line 1: listen: '8080' is no address"),
    ("listen = '::1:8080'", "line 1: listen"),
    ("workers = 'two'", "line 1: workers: 'two' is no whole number"),
    ("admin = 3", "line 1: admin: it is a table"),
    ("routes = 3", "line 1: routes: it is a list of tables"),
    ("store = ''", "line 1: store: '' is no text"),
    ("[principal]\nheader = 'X-User'", "line 2: header of [principal]: principal: a header that every client can set"),
    ("[principal]\nheader = 'X-User'\nfrom = ['10.0.0.0/99']", "line 3: from of [principal]"),
    ("[principal]\nalgorithms = ['none']\njwks_url = 'http://id'", "line 2: algorithms of [principal]"),
    ("[principal]\nalgorithms = ['HS256']\nkey_file = '/nowhere'", "of [principal]: [Errno 2]"),
    ("secret_env = 'RETRYSAFE_NOT_SET'", "line 1: secret_env: there is no environment variable RETRYSAFE_NOT_SET"),
    ("upstream = what", "(at line 1, column 12)"),
]


@each_row(("text", "complaint"), WRONG)
def test_faults_are_said_with_their_line_and_name(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse(text, "gateway.toml")
    assert error.value.detail.startswith("gateway.toml")
    assert complaint in error.value.detail


@each_row(
    ("terms", "message"),
    [
        ({"upstream": "127.0.0.1:3000"}, "not a URL"),
        ({"upstream": "ftp://h"}, "not a URL"),
        ({"upstream": "http://u:p@h"}, "password"),
        ({"upstream": "http://u:p#q@h"}, r"upstream 'http://u:\*\*\*@h' is not a URL"),
        ({"workers": 0}, "from 1"),
        ({"workers": 2}, "memory://"),
        ({"host": "any"}, "host='any'"),
        ({"admin_prefix": "/"}, "prefix"),
        ({"listen": ("10.0.0.1", 80), "admin": ("127.0.0.1", 80)}, "port of listen"),
    ],
)
def test_settings_that_cannot_be_meant(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Settings(**{"upstream": "http://h", "store": "memory://", "principal": "shared", **terms})


def test_tokens_in_a_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a secret of many bytes, 32 at least\n")
    text = f"upstream='http://h'\nstore='memory://'\n[principal]\nalgorithms=['HS256']\nkey_file='{key}'\nissuer='i'\n"
    assert parse(text).settings().principal == Claims(("HS256",), key="a secret of many bytes, 32 at least", issuer="i")


# ---------------------------------------------------------------- which policy a request has


def request(method: str, path: str) -> Request:
    return Request(method, path.encode(), b"", ())


def test_the_first_route_that_matches_counts() -> None:
    settings = replace(parse(WHOLE).settings(), principal="shared")
    guards = Guards(settings)
    found = {
        path: guards.of(request(*path.split())).route.match
        for path in ("POST /payments/7/refunds", "POST /payments/7", "POST /internal/x/y", "PUT /payments/7/refunds")
    }
    assert list(found.values()) == ["POST /payments/{id}/refunds", "/**", "/internal/**", "/**"]
    refunds = guards.of(request("POST", "/payments/7/refunds")).guard
    assert refunds.need(request("POST", "/payments/7/refunds")) == "required"
    assert refunds.boundary.effects == "keyed"
    assert guards.of(request("POST", "/internal/x")).guard.need(request("POST", "/internal/x")) == "off"
    assert guards.defaults.guard.need(request("POST", "/x")) == "optional"
    assert guards.defaults.guard.need(request("PUT", "/x")) == "off"
    assert {one.guard.boundary.name for one in guards.all} == {"shop"}


@pytest.mark.slow
def test_a_key_of_one_route_is_refused_on_another_whatever_their_policies() -> None:
    routes = (Route("POST /payments", effects="keyed", window="48h"), Route("PUT /orders/{id}", key="required"))
    with before(always(OK), routes=routes) as (front, upstream):
        assert front.ask(path="/payments", key="k1").status == 200
        assert front.ask("PUT", "/orders/7", key="k1").code == "key-reused"
        assert front.ask("PUT", "/orders/7").code == "key-missing"
        assert front.ask("PUT", "/orders/7", key="k2").status == 200
        assert front.ask("PUT", "/orders/7", key="k2").replayed
        assert front.ask("PUT", "/elsewhere", key="k1").status == 200, "PUT is not guarded unless a route says so"
        assert len(upstream.seen) == 3


@pytest.mark.slow
def test_a_route_for_everything_is_a_route_as_any_other() -> None:
    with before(always(OK), routes=(Route("/**", key="required"),)) as (front, upstream):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert front.ask(method).code == "key-missing"
        assert front.ask("GET").status == 200
        assert len(upstream.seen) == 1


@pytest.mark.slow
def test_a_route_that_is_off_and_one_by_method_on_the_same_path() -> None:
    routes = (Route("DELETE /orders/{id}", key="optional"), Route("/orders/**", key="off"))
    with before(always(OK), routes=routes) as (front, _):
        assert [front.ask("DELETE", "/orders/7", key="k1").replayed for _ in range(2)] == [False, True]
        assert [front.ask("POST", "/orders/7", key="k2").replayed for _ in range(2)] == [False, False]


def test_a_route_that_requires_a_key_holds_for_other_spellings_of_its_path() -> None:
    routes = (Route("POST /payments", key="required"), Route("POST /Free", key="off"), Route("/**", key="optional"))
    guards = Guards(Settings("http://h", "memory://", principal="shared", routes=routes))
    for path in ("//payments", "/payments/", "/Payments", "/pay%6Dents//"):
        assert guards.of(request("POST", path)).route.match == "POST /payments", path
    assert guards.of(request("POST", "/free")).route.match == "/**", "what switches a guard off is no wider"
    earlier = Guards(
        Settings("http://h", "memory://", principal="shared", routes=(Route("POST /Payments", key="off"), *routes))
    )
    assert earlier.of(request("POST", "/Payments")).route.key == "off"


def test_safe_methods_are_no_matter_of_a_route() -> None:
    with pytest.raises(ConfigurationError, match="GET is safe"):
        Guards(Settings("http://h", "memory://", principal="shared", routes=(Route("GET /orders"),)))


# ---------------------------------------------------------------- OpenAPI

PARAMETER = {"name": "Idempotency-Key", "in": "header", "required": True}
DOCUMENT = {
    "openapi": "3.1.0",
    "components": {"parameters": {"Key": {**PARAMETER, "required": False}}},
    "paths": {
        "/payments": {"post": {"parameters": [PARAMETER]}, "get": {"parameters": [PARAMETER]}},
        "/orders/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Key"}],
            "put": {},
            "delete": {"x-idempotency": False},
        },
        "/mails": {"post": {"x-idempotency": {"required": True, "window": 3600, "effects": "external"}}},
        "/plain": {"post": {"parameters": [{"name": "Idempotency-Key", "in": "query"}]}},
        "/orders/search": {"post": {}, "put": {}},
    },
}


def test_routes_of_an_openapi_document() -> None:
    found = routes_of(DOCUMENT, Route(window="48h", effects="external"))
    told = [(route.match, route.key, route.effects, route.window) for route in found]
    assert told == [
        ("POST /payments", "required", "keyed", "48h"),
        ("POST /mails", "required", "external", 3600),
        ("POST /plain", "optional", "external", "48h"),
        ("POST /orders/search", "optional", "external", "48h"),
        ("PUT /orders/search", "off", "external", "48h"),
        ("PUT /orders/{id}", "optional", "keyed", "48h"),
        ("DELETE /orders/{id}", "off", "external", "48h"),
    ]
    named = {"paths": {"/pay": {"post": {"x-idempotency": {"header": "X-Key"}}}}, "openapi": "3"}
    assert [one.options for one in routes_of(named, Route())] == [{"header": "X-Key"}]
    guards = Guards(Settings("http://h", "memory://", principal="shared", routes=found))
    assert guards.of(request("PUT", "/orders/search")).route.effects == "external", "it knows no key"


def told(listed: Any, upstream: str = "http://h", **item: Any) -> list[str]:
    paths = {"/pay": {"post": {"parameters": [PARAMETER], **item}}}
    return [route.match for route in routes_of({"openapi": "3", "servers": listed, "paths": paths}, Route(), upstream)]


def test_paths_begin_with_that_of_their_servers() -> None:
    assert told([]) == told([{"url": "/"}]) == told([{"url": "https://h"}]) == ["POST /pay"]
    assert told([{"url": "https://h/v1/"}, {"url": "/v2"}]) == ["POST /v1/pay", "POST /v2/pay"]
    assert told([{"url": "/v1"}], servers=[{"url": "/own"}]) == ["POST /own/pay"]
    variables = {"host": {"default": "h"}, "version": {"default": "v1", "enum": ["v1", "v2"]}}
    varied = {"url": "https://{host}/{version}", "variables": variables}
    assert told([varied]) == ["POST /v1/pay", "POST /v2/pay"]
    assert told([{"url": "/api/v1"}], "http://h/api") == ["POST /v1/pay"], "the upstream's path is added by the gateway"
    assert told([{"url": "/apis"}], "http://h/api") == ["POST /apis/pay"]


def test_a_path_may_stand_elsewhere_in_the_document() -> None:
    components = {"pathItems": {"a/b": {"$ref": "#/components/pathItems/c"}, "c": {"post": {"x-idempotency": True}}}}
    paths = {"/pay": {"$ref": "#/components/pathItems/a~1b"}, "x-told": 3}
    (route,) = routes_of({"openapi": "3", "components": components, "paths": paths}, Route())
    assert (route.match, route.effects) == ("POST /pay", "keyed")


@each_row(
    ("item", "servers", "complaint"),
    [
        ({"$ref": "other.json#/x"}, [], "refers to another document"),
        ({"$ref": "#/nowhere"}, [], "leads nowhere"),
        ({"$ref": "#/paths/~1pay"}, [], "circular"),
        ({"post": {"parameters": [{"$ref": "other.json#/x"}]}}, [], "refers to another document"),
        ({"post": {"parameters": {}, "x": 1}, "parameters": "p"}, [], "parameters is no list"),
        ({"post": []}, [], "is no object"),
        ([], [], "is no object"),
        ({"post": {}}, [{"url": "v1"}], "relative to an unknown base"),
        ({"post": {}}, [{"url": "/{version}"}], "no value for {version}"),
        ({"post": {}}, "/v1", "servers is no list"),
    ],
)
def test_entries_that_could_hide_a_route_are_refused(item: Any, servers: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        routes_of({"openapi": "3", "servers": servers, "paths": {"/pay": item}}, Route())


@each_row("document", [[], {}, {"openapi": "3"}, {"swagger": "2.0", "paths": {}}])
def test_invalid_openapi_documents(document: Any) -> None:
    with pytest.raises(ConfigurationError, match="not an OpenAPI document"):
        routes_of(document, Route())


def options(**given: Any) -> argparse.Namespace:
    unset = dict.fromkeys(("upstream", "store", "config", "listen", "admin", "workers", "openapi", "principal"))
    return argparse.Namespace(**{**unset, **given})


@pytest.mark.slow
def test_a_document_is_read_from_the_upstream_and_what_the_file_says_comes_first(tmp_path: Path) -> None:
    body = json.dumps(DOCUMENT).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    file = tmp_path / "gateway.toml"
    file.write_text('openapi = "/openapi.json"\n[[routes]]\nmatch = "POST /payments"\nkey = "optional"\n')
    with before(always(answer)) as (_, upstream):
        given = options(upstream=upstream.url, config=file, principal="shared")
        with pytest.raises(ConfigurationError, match="store is missing"):
            settings_of(given, store="RETRYSAFE_X", secret="RETRYSAFE_Y")
        settings = settings_of(options(**{**vars(given), "store": "memory://"}), store="X", secret="Y")
    assert [(route.match, route.key) for route in settings.routes] == [
        ("POST /payments", "optional"),
        ("POST /mails", "required"),
        ("POST /plain", "optional"),
        ("POST /orders/search", "optional"),
        ("PUT /orders/search", "off"),
        ("PUT /orders/{id}", "optional"),
        ("DELETE /orders/{id}", "off"),
    ]


@each_row(
    ("content", "complaint"), [(None, "No such file"), ("{", "this is not JSON"), ("[]", "not an OpenAPI document")]
)
def test_a_document_that_cannot_be_read(tmp_path: Path, content: str | None, complaint: str) -> None:
    file = tmp_path / "openapi.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=complaint):
        settings_of(
            options(
                upstream="http://127.0.0.1:1",
                store="memory://",
                principal="shared",
                openapi=file.name if content is None else str(file),
            ),
            store="X",
            secret="Y",
        )


# ---------------------------------------------------------------- the command


def test_the_command_says_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(WHOLE)
    assert main(["gateway", "--config", str(file), "--check"]) == 0
    told = capsys.readouterr().out
    assert "upstream     http://127.0.0.1:3000/prefix" in told
    assert "principal    header X-User, from 10.0.0.0/8, ::1/128" in told
    assert "POST /payments/{id}/refunds: key required, window 172800 s, duplicate waits 5 s, effects keyed" in told
    assert "sent again after a lost answer, with the same derived key: once, if the upstream recognises keys" in told
    assert "/internal/**: not guarded" in told
    assert "all others (PATCH, POST): key optional" in told
    assert "sent once; if its answer is lost, the key is unknown until it is settled" in told
    assert "warning      a route that requires keys is passed by /path/" in told


@each_row(
    ("arguments", "complaint"),
    [
        (["--store", "memory://"], "upstream is missing"),
        (["--upstream", "http://h"], "store is missing"),
        (["--upstream", "http://h", "--store", "memory://"], "principal= is missing: it tells whose a request is"),
        (["--upstream", "http://h", "--store", "memory://", "--principal", "X-User"], "[principal] # in --config"),
        (["--upstream", "http://h", "--store", "memory://", "--listen", "x"], "--listen: 'x' is no address"),
        (["--config", "/nowhere.toml"], "No such file"),
    ],
)
def test_a_command_that_cannot_be_carried_out(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETRYSAFE_STORE", raising=False)
    assert main(["gateway", *arguments, "--check"]) == 2
    assert complaint in capsys.readouterr().err


def test_a_store_without_tables_is_refused_and_one_that_is_away_is_told(postgresql: str) -> None:
    def check(store: str) -> str | None:
        return asyncio.run(check_store(Guards(Settings("http://h", store, principal="shared"))))

    assert check("memory://") is None
    assert "warning      the store does not answer: " in str(check("postgresql://nobody@127.0.0.1:1/x"))
    with own_database(postgresql, migrated=False) as empty, pytest.raises(SchemaOutdated, match="retrysafe migrate"):
        check(empty)
