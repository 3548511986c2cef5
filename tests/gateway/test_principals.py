"""The principal of a request: a header is believed of trusted networks only, a token only when all of it is right."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from retrysafe import ConfigurationError
from retrysafe.gateway import Claims, TrustedHeader
from retrysafe.gateway.principals import AGE, PAUSE, PAUSE_AFTER_FAILURE, HeaderFinder, PublishedKeys, TokenFinder
from retrysafe.http.problems import Refusal
from tests.gateway.upstreams import OK, always, before
from tests.tables import each_row

SECRET = "a shared secret of enough bytes even for an HMAC that is made with SHA-512"
PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC = (
    PRIVATE.public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)
NOW, DAY = int(time.time()), 86_400  # a day: it may be long after this that a test runs


def scope(*fields: tuple[str, str], client: str = "127.0.0.1") -> dict[str, Any]:
    headers = [(name.lower().encode(), value.encode()) for name, value in fields]
    return {"headers": headers, "client": (client, 4000)}


def bearer(token: str) -> dict[str, Any]:
    return scope(("Authorization", f"Bearer {token}"))


# ---------------------------------------------------------------- headers


def test_k8_a_header_is_believed_of_trusted_networks_only() -> None:
    finder = HeaderFinder(TrustedHeader("X-User", (ip_network("10.0.0.0/8"), ip_network("::1/128"))))
    assert finder(scope(("X-User", "ann"), client="10.1.2.3")) == "ann"
    assert finder(scope(("X-User", "ann"), client="::1")) == "ann"
    assert finder(scope(("X-User", "ann"), client="::ffff:10.1.2.3")) == "ann", "on a socket for both"
    for wrong in (
        scope(("X-User", "ann"), client="192.0.2.1"),
        scope(("X-User", "ann"), client="not an address"),
        scope(client="10.1.2.3"),
        scope(("X-User", ""), client="10.1.2.3"),
        scope(("X-User", "ann"), ("X-User", "eve"), client="10.1.2.3"),
        {**scope(("X-User", "ann")), "client": None},
    ):
        with pytest.raises(Refusal) as refused:
            finder(wrong)
        assert refused.value.code == "principal-missing"


def test_k8_a_header_needs_networks_to_be_believed_of() -> None:
    with pytest.raises(ConfigurationError, match="from="):
        TrustedHeader("X-User", ())


@pytest.mark.slow
@pytest.mark.fault(74)
def test_k8_two_principals_do_not_share_a_key_and_nobody_has_none() -> None:
    principal = TrustedHeader("X-User", (ip_network("127.0.0.0/8"),))
    with before(always(OK), principal=principal) as (front, upstream):
        assert not front.ask(key="order-1", X_User="ann").replayed
        assert not front.ask(key="order-1", X_User="bob").replayed
        assert front.ask(key="order-1", X_User="ann").replayed
        assert front.ask(key="order-1").code == "principal-missing"
        assert front.ask().status == 200, "what has no key is nobody's matter"
        keys = {seen.all(b"idempotency-key")[0] for seen in upstream.seen if seen.all(b"idempotency-key")}
        assert len(keys) == 2


# ---------------------------------------------------------------- tokens

HMAC = Claims(("HS256",), key=SECRET, audience="shop", issuer="https://id.example")
RIGHT = {"sub": "ann", "exp": NOW + DAY, "aud": "shop", "iss": "https://id.example"}


def signed(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    found = {name: value for name, value in {**RIGHT, **claims}.items() if value is not None}
    return jwt.encode(found, secret, algorithm)


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def by_hand(header: dict[str, Any], secret: str = "", **claims: Any) -> str:
    """A token as no library would make it."""
    text = f"{part(header)}.{part({**RIGHT, **claims})}"
    if not secret:
        return text + "."
    mac = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


async def test_k9_the_principal_is_the_claim_and_not_the_token() -> None:
    finder = TokenFinder(HMAC, None)
    assert await finder(bearer(signed())) == await finder(bearer(signed(exp=NOW + DAY + 900))) == "ann"
    other = TokenFinder(Claims(("HS256",), key=SECRET, claim="client_id", header="X-Token"), None)
    assert await other(scope(("X-Token", signed(client_id="shop-7", aud=None)))) == "shop-7"


@each_row(
    "token",
    [
        signed(exp=NOW - 60),
        signed(exp=None),
        signed(nbf=NOW + DAY),
        signed(sub=None),
        signed(aud="another"),
        signed(aud=None),
        signed(iss="https://eve.example"),
        signed("another secret of enough bytes even for an HMAC that is made with SHA-512"),
        signed(algorithm="HS512"),
        signed()[:-2],
        by_hand({"alg": "none"}),
        by_hand({"alg": "None"}),
        by_hand({"alg": "HS256", "crit": ["x"]}, SECRET),
        "no token at all",
        "",
    ],
    ids=range(15),
)
async def test_k8_a_token_that_is_not_right_in_everything_is_nobodys(token: str) -> None:
    with pytest.raises(Refusal) as refused:
        await TokenFinder(HMAC, None)(bearer(token))
    assert refused.value.code == "principal-missing"
    assert SECRET not in refused.value.detail


async def test_k8_a_public_key_is_never_taken_for_a_secret() -> None:
    finder = TokenFinder(Claims(("RS256",), key=PUBLIC), None)
    good = jwt.encode({"sub": "ann", "exp": NOW + DAY}, PRIVATE, "RS256")
    assert await finder(bearer(good)) == "ann"
    with pytest.raises(Refusal):
        await finder(bearer(by_hand({"alg": "HS256"}, PUBLIC)))


@each_row("value", [True, "", [], {"id": 7}, 1.5])
async def test_k8_a_claim_that_is_no_name_names_nobody(value: Any) -> None:
    finder = TokenFinder(Claims(("HS256",), key=SECRET, claim="account"), None)
    assert await finder(bearer(signed(account=7, aud=None))) == "7"
    with pytest.raises(Refusal):
        await finder(bearer(signed(account=value, aud=None)))


async def test_a_number_may_be_the_subject() -> None:
    finder = TokenFinder(Claims(("HS256",), key=SECRET), None)
    assert await finder(bearer(by_hand({"alg": "HS256"}, SECRET, sub=7))) == "7"
    with pytest.raises(Refusal):
        await finder(bearer(by_hand({"alg": "HS256"}, SECRET, sub=["ann"])))


def test_a_secret_is_not_shown() -> None:
    assert SECRET not in repr(HMAC)


@each_row("header", [(), (("Authorization", "Basic YTpi"),), (("Authorization", "Bearer"),)])
async def test_k8_no_token_is_nobody(header: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(Refusal):
        await TokenFinder(HMAC, None)(scope(*header))


@each_row(
    ("terms", "message"),
    [
        ({"algorithms": ("none",), "key": SECRET}, "none"),
        ({"algorithms": ("HS256", "NONE"), "key": SECRET}, "none"),
        ({"algorithms": (), "key": SECRET}, "empty"),
        ({"algorithms": ("HS256", "RS256"), "key": SECRET}, "mixes"),
        ({"algorithms": ("HS256",), "key": PUBLIC}, "PEM"),
        ({"algorithms": ("HS256",), "jwks_url": "http://id/jwks"}, "shared secret"),
        ({"algorithms": ("HS256",), "key": "short"}, "32 bytes"),
        ({"algorithms": ("RS265",), "key": PUBLIC}, "'RS265', which is not supported"),
        ({"algorithms": ("RS256",)}, "jwks_url or key_file"),
        ({"algorithms": ("RS256",), "key": PUBLIC, "jwks_url": "http://id/jwks"}, "not both"),
    ],
)
def test_settings_that_let_a_token_name_anyone_are_refused(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Claims(**terms)


# ---------------------------------------------------------------- published keys


class Issuer:
    """Publishes the keys that it has at the moment."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"a": PRIVATE}
        self.asked = 0
        self.status, self.more = 200, ""
        self.came, self.hangs = threading.Event(), threading.Event()
        self.hangs.set()
        issuer = self

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.came.set()
                issuer.hangs.wait(60)
                document = {"keys": [issuer.published(kid) for kid in issuer.keys], "more": issuer.more}
                body = json.dumps(document).encode()
                self.send_response(issuer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks"

    def published(self, kid: str) -> dict[str, Any]:
        numbers = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.keys[kid].public_key()))
        return {**numbers, "kid": kid, "use": "sig", "alg": "RS256"}

    def token(self, kid: str | None) -> str:
        key = self.keys[kid or "a"]
        return jwt.encode({"sub": "ann", "exp": NOW + DAY}, key, "RS256", headers={"kid": kid} if kid else None)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


class Now:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.slow
async def test_published_keys_are_asked_for_seldom_and_followed_when_they_change(issuer: Issuer) -> None:
    now = Now()
    async with aiohttp.ClientSession() as session:
        published = PublishedKeys(issuer.url, session, clock=now)
        finder = TokenFinder(Claims(("RS256",), jwks_url=issuer.url), published)
        assert [await finder(bearer(issuer.token(kid))) for kid in ("a", None, "a")] == ["ann"] * 3
        assert issuer.asked == 1
        issuer.keys["b"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        for _ in range(3):
            with pytest.raises(Refusal):  # not yet asked again: anybody can name keys that nobody has
                await finder(bearer(issuer.token("b")))
        assert issuer.asked == 1
        now.seconds += PAUSE
        assert await finder(bearer(issuer.token("b"))) == "ann"
        assert issuer.asked == 2
        issuer.status = 503
        now.seconds += AGE + 1
        assert await finder(bearer(issuer.token("b"))) == "ann", "known keys hold while the issuer is away"
        await asked(published)
        assert issuer.asked == 3
        with pytest.raises(Refusal):
            await finder(bearer(by_hand({"alg": "HS256", "kid": "a"}, PUBLIC)))


async def asked(published: PublishedKeys) -> None:
    """Wait for the question that is asked at the moment."""
    assert published._asking is not None
    await published._asking


@pytest.mark.slow
async def test_while_an_issuer_was_never_reached_nobody_is_guessed(issuer: Issuer) -> None:
    issuer.status = 503
    now = Now()
    async with aiohttp.ClientSession() as session:
        finder = TokenFinder(Claims(("RS256",), jwks_url=issuer.url), PublishedKeys(issuer.url, session, clock=now))
        for _ in range(3):
            with pytest.raises(Refusal) as refused:
                await finder(bearer(issuer.token("a")))
            assert refused.value.code == "identity-unavailable"
        assert issuer.asked == 1, "it is left alone for a moment"
        issuer.status = 200
        now.seconds += PAUSE_AFTER_FAILURE
        assert await finder(bearer(issuer.token("a"))) == "ann"


@pytest.mark.slow
async def test_a_document_of_keys_that_never_ends_is_not_kept(issuer: Issuer) -> None:
    now = Now()
    async with aiohttp.ClientSession() as session:
        published = PublishedKeys(issuer.url, session, clock=now)
        finder = TokenFinder(Claims(("RS256",), jwks_url=issuer.url), published)
        issuer.more = "x" * (1 << 20)
        with pytest.raises(Refusal, match="identity-unavailable"):
            await finder(bearer(issuer.token("a")))
        issuer.more = ""
        now.seconds += PAUSE_AFTER_FAILURE
        assert await finder(bearer(issuer.token("a"))) == "ann"


@pytest.mark.slow
async def test_tokens_with_a_known_key_do_not_wait_for_an_issuer_and_all_others_wait_once(issuer: Issuer) -> None:
    now = Now()
    async with aiohttp.ClientSession() as session:
        published = PublishedKeys(issuer.url, session, clock=now)
        finder = TokenFinder(Claims(("RS256",), jwks_url=issuer.url), published)
        issuer.hangs.clear()
        first = [asyncio.create_task(finder(bearer(issuer.token("a")))) for _ in range(5)]
        await asyncio.to_thread(issuer.came.wait, 60)
        first[0].cancel()  # one that gives up takes the question from nobody
        issuer.hangs.set()
        assert (await asyncio.gather(*first, return_exceptions=True))[1:] == ["ann"] * 4
        assert issuer.asked == 1

        issuer.hangs.clear()
        now.seconds += AGE + 1
        for _ in range(3):
            assert await finder(bearer(issuer.token("a"))) == "ann"
        assert published._asking is not None, "and the question is still being asked"
        unknown = [asyncio.create_task(finder(bearer(by_hand({"alg": "RS256", "kid": "z"})))) for _ in range(3)]
        await asyncio.sleep(0)
        issuer.status = 503
        issuer.hangs.set()
        refused = await asyncio.gather(*unknown, return_exceptions=True)
        assert [getattr(one, "code", one) for one in refused] == ["identity-unavailable"] * 3
        assert issuer.asked == 2


@pytest.mark.slow
def test_a_gateway_with_published_keys(issuer: Issuer) -> None:
    principal = Claims(("RS256",), jwks_url=issuer.url)
    with before(always(OK), principal=principal) as (front, upstream):
        ann = {"Authorization": f"Bearer {issuer.token('a')}"}
        assert [front.ask(key="order-1", **ann).replayed for _ in range(2)] == [False, True]
        refused = front.ask(key="order-1", Authorization="Bearer x.y.z")
        assert (refused.status, refused.code) == (403, "principal-missing")
        assert refused.error == "gateway; error=http_request_denied"
        assert len(upstream.seen) == 1
