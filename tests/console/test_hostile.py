"""Hostile browsers: forged forms, scripts in what is shown, frames, forced browsing, tampering, and false names."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator

import httpx
import pytest

from retrysafe.console import EVERY_RIGHT, Local, Principal, Right
from retrysafe.console.app import PAGES
from retrysafe.console.security import COOKIE, HEADERS
from retrysafe.errors import ConfigurationError
from tests.console.conftest import ADA, CARD, Deck
from tests.console.visiting import BASE, Page, Visitor
from tests.messaging.inboxes import envelope

SCRIPT = "<script>alert(1)</script>"
HANDLER = "\"' onmouseover='alert(1)' x=\""


@pytest.fixture
async def ada(shelf: Deck) -> AsyncIterator[Visitor]:
    visitor = Visitor(shelf.console())
    yield visitor
    await visitor.close()


def states(deck: Deck) -> set[str]:
    return {record.effective_state.value for record in deck.place.operator().find(boundary="payments")}


# ---------------------------------------------------------------- forged forms


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:8000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": BASE},
    ],
)
async def test_a_form_of_another_origin_is_refused(shelf: Deck, ada: Visitor, headers: dict[str, str]) -> None:
    """Even with the right token, as an origin beside ours could have found it."""
    shelf.unknown("K")
    page = await _key(ada)
    form = page.form("/resolve")
    refused = await ada.post(form.action, {**form.fields, "outcome": "released", "reason": "r"}, **headers)
    assert (refused.status, states(shelf)) == (403, {"unknown"})


@pytest.mark.parametrize("token", ["", "0" * 64, "é"])
async def test_a_form_without_our_token_is_refused(shelf: Deck, ada: Visitor, token: str) -> None:
    shelf.unknown("K")
    form = (await _key(ada)).form("/resolve")
    refused = await ada.post(
        form.action, {**form.fields, "token": token, "outcome": "released", "reason": "r"}, Origin=BASE
    )
    assert (refused.status, states(shelf)) == (403, {"unknown"})


async def test_a_token_belongs_to_one_browser_and_one_principal(shelf: Deck) -> None:
    shelf.unknown("K")
    who = [ADA]
    console = shelf.console(access=lambda request: who[0])
    one, other = Visitor(console), Visitor(console)
    form = (await _key(one)).form("/resolve")
    await other.get("/")
    given = {**form.fields, "outcome": "released", "reason": "r"}
    assert (await other.post(form.action, given, Origin=BASE)).status == 403
    who[0] = ADA._replace(name="grace")
    assert (await one.post(form.action, given, Origin=BASE)).status == 403
    planted = Visitor(shelf.console(), Cookie=f"{COOKIE}=planted")
    token = (await Visitor(shelf.console(), Cookie=f"{COOKIE}=planted").get("/")).forms[0].fields["token"]
    assert (await planted.post(form.action, {**given, "token": token}, Origin=BASE)).status == 403
    assert states(shelf) == {"unknown"}


async def test_the_cookie_is_for_this_site_alone(ada: Visitor) -> None:
    plain = (await ada.get("/")).response.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert part.lower() in plain.lower()
    ada.client.cookies.clear()
    secure = (await ada.client.get("https://localhost/")).headers["set-cookie"]
    assert secure.startswith("__Host-")
    assert "secure" in secure.lower()


async def test_only_small_forms_are_read(shelf: Deck, ada: Visitor) -> None:
    form = (await ada.get("/")).form("/keys/find")
    big = await ada.post(form.action, {**form.fields, "key": "x" * (2 << 20)}, Origin=BASE)
    assert big.status == 413
    many = await ada.client.post(form.action, data={f"f{n}": "" for n in range(500)}, headers={"Origin": BASE})
    assert many.status_code == 400
    for kind in ("application/json", "multipart/form-data; boundary=x", "text/plain"):
        other = await ada.client.post(form.action, content=b"{}", headers={"Origin": BASE, "Content-Type": kind})
        assert other.status_code == 415


# ---------------------------------------------------------------- scripts and frames


async def test_nothing_that_is_shown_becomes_markup(shelf: Deck, ada: Visitor) -> None:
    hostile = f"{SCRIPT}{HANDLER}"
    shelf.unknown("K", operation=hostile, name=hostile, scope=hostile)
    shelf.completed("L", operation=hostile, result=hostile)
    shelf.messages((f"topic{SCRIPT}", f"type{HANDLER}", {"text": hostile}))
    shelf.all_die(f"HTTP 422: {hostile}")
    shelf.dead_in_an_inbox(envelope(1, hostile, hostile.encode()), consumer=hostile)
    paths = ["/", "/keys", "/unknown", "/messages", "/messages/dead", "/messages/inbox", "/messages/relays"]
    paths += ["/boundaries", "/operations", "/keys/resolve", "/messages/dead/redrive", "/messages/inbox/redrive"]
    pages = [await ada.get(path) for path in paths]
    quoted = dict.fromkeys(("boundary", "operation", "scope", "topic", "type", "error", "consumer"), hostile)
    pages += [await _with(ada, path, quoted) for path in ("/keys", "/messages/dead", "/messages/inbox")]
    for listed in ("/keys", "/messages/dead", "/messages/inbox"):
        for href in (await ada.get(listed)).links.values():
            if re.match(listed + r"/[0-9a-f-]+$", href):
                page = await ada.get(href)
                pages.append(page)
                if any(form.action.endswith("/reveal") for form in page.forms):
                    pages.append(await ada.submit(page, "/reveal"))
    assert sum("alert(1)" in page.html for page in pages) > 10, "it is shown"
    for page in pages:
        assert page.status == 200, page.text
        scripts = [given for tag, given in page.tags if tag == "script"]
        assert [given["src"].partition("?")[0] for given in scripts if given["src"]] == ["/static/console.js"]
        assert not [name for _, given in page.tags for name in given if name.startswith("on") or name == "style"]
        hrefs = [given.get("href") or given.get("action") or "/" for _, given in page.tags]
        assert all(href.startswith(("/", "#")) and not href.startswith("//") for href in hrefs)


async def test_every_answer_has_the_headers_of_a_page_that_is_nobodys_frame(shelf: Deck, ada: Visitor) -> None:
    refusing = Visitor(shelf.console(None))
    answers = [await ada.get(path) for path in ("/", "/keys", "/nothing", "/keys/xyz", "/static/console.js")]
    answers += [await refusing.get("/"), await ada.post("/keys/find", {}), await ada.post("/", {})]
    answers += [await ada.get("/keys/")]
    assert [one.status for one in answers] == [200, 200, 404, 404, 200, 403, 415, 405, 307]
    for one in answers:
        told = one.response.headers
        assert {name: told[name] for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (HEADERS["X-Frame-Options"], HEADERS["Cache-Control"]) == ("DENY", "no-store")


async def test_an_error_shows_nothing_of_itself(shelf: Deck, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request: object) -> Principal:
        raise RuntimeError("password=hunter2")

    page = await Visitor(shelf.console(access=broken)).get("/")
    assert (page.status, "hunter2" in page.html) == (500, False)


# ---------------------------------------------------------------- forced browsing


@pytest.mark.parametrize("right", sorted(Right))
async def test_an_address_takes_its_right_whatever_the_pages_show(shelf: Deck, right: Right) -> None:
    """With every right but one, each address of that one is refused, and nothing is changed."""
    shelf.unknown("K")
    shelf.completed("L")
    shelf.messages(("mail", "sent.v1", {"card": CARD}))
    shelf.all_die()
    shelf.dead_in_an_inbox(envelope(1))
    full, less = Visitor(shelf.console()), Visitor(shelf.console(Principal("eve", EVERY_RIGHT - {right})))
    before = [(await full.get(path)).text for path in ("/keys", "/messages", "/messages/dead", "/messages/inbox")]
    tried = 0
    for page in (await _key(full, "K"), await _key(full, "L"), *[await full.get(one) for one in await _letters(full)]):
        token = (await less.get("/")).forms[0].fields["token"]
        for form in page.forms:
            needs = _right_of(form.action)
            if form.method == "post" and needs is right:
                fields = {**form.fields, "token": token, "outcome": "released", "reason": "r", "confirmed": "yes"}
                refused = await less.post(form.action, fields, Origin=BASE)
                assert (refused.status, f"“{right}”" in refused.text) == (403, True)
                assert CARD not in refused.html
                tried += 1
    for one in PAGES:
        if one.right is right and "{" not in one.path:
            token = (await less.get("/")).forms[0].fields["token"]
            asked = (
                less.get(one.path) if one.method == "GET" else less.post(one.path, {"token": token, "topic": "mail"})
            )
            assert (await asked).status == 403
            tried += 1
    assert tried
    after = [(await full.get(path)).text for path in ("/keys", "/messages", "/messages/dead", "/messages/inbox")]
    assert [_timeless(one) for one in after] == [_timeless(one) for one in before]
    assert "revealed" not in [entry["event"] for entry in shelf.audited]


async def test_nobody_gets_a_page(shelf: Deck) -> None:
    visitor = Visitor(shelf.console(None))
    for page in PAGES:
        path = page.path.replace("{digits}", "0" * 64).replace("{at}", "1").replace("{number}", "1")
        answer = await (visitor.get(path) if page.method == "GET" else visitor.post(path, {}))
        assert (answer.status, "does not let you in" in answer.text) == (403, True), path


async def test_an_access_function_that_returns_anything_else_lets_nobody_in(shelf: Deck) -> None:
    for wrong in (True, "ada", object(), Principal("")):
        assert (await Visitor(shelf.console(access=lambda request, wrong=wrong: wrong)).get("/")).status == 403


# ---------------------------------------------------------------- tampering


async def test_a_plan_that_was_changed_is_refused(shelf: Deck, ada: Visitor) -> None:
    shelf.unknown("K", "L", operation="charge")
    preview = await ada.get("/keys/resolve?operation=nothing")
    signed = (await ada.get("/keys/resolve?operation=charge")).form("/operations").fields["plan"]
    body, _, mac = signed.partition(".")
    plan = json.loads(urlsafe_b64decode(body))
    wider = urlsafe_b64encode(json.dumps({**plan, "fields": []}).encode()).decode()
    assert "selects nothing" in preview.text
    token = (await ada.get("/")).forms[0].fields["token"]
    given = {"token": token, "outcome": "released", "reason": "r", "confirmed": "yes"}
    for changed in (f"{wider}.{mac}", f"{wider}.", wider, f"{body}.{'0' * 64}", "", "é.é"):
        refused = await ada.post("/operations", {**given, "plan": changed}, Origin=BASE)
        assert refused.status == 400, changed
    assert states(shelf) == {"unknown"}


async def test_a_plan_of_another_principal_is_refused(shelf: Deck) -> None:
    shelf.unknown("K")
    who = [ADA]
    visitor = Visitor(shelf.console(access=lambda request: who[0]))
    plan = (await visitor.get("/keys/resolve")).form("/operations").fields["plan"]
    who[0] = ADA._replace(name="eve")
    token = (await visitor.get("/")).forms[0].fields["token"]
    given = {"token": token, "plan": plan, "outcome": "released", "reason": "r", "confirmed": "yes"}
    refused = await visitor.post("/operations", given, Origin=BASE)
    assert (refused.status, states(shelf)) == (400, {"unknown"})


async def test_a_right_is_asked_for_again_when_a_plan_is_confirmed(shelf: Deck) -> None:
    shelf.unknown("K")
    rights = [EVERY_RIGHT]
    visitor = Visitor(shelf.console(access=lambda request: Principal("ada", rights[0])))
    form = (await visitor.get("/keys/resolve")).form("/operations")
    rights[0] = EVERY_RIGHT - {Right.RESOLVE}
    given = {**form.fields, "outcome": "released", "reason": "r", "confirmed": "yes"}
    refused = await visitor.post("/operations", given, Origin=BASE)
    assert (refused.status, states(shelf)) == (403, {"unknown"})


@pytest.mark.parametrize(
    "path",
    [
        "/keys?after=zz",
        "/keys?after=0-00",
        f"/unknown?after={'9' * 40}-{'00' * 32}",
        "/keys?state=nonsense",
        "/keys?since=yesterday",
        "/keys?older-than=-1",
        "/keys?hash=xyz",
        f"/messages/dead?after={'9' * 40}",
        "/messages/dead?after=-1",
        "/messages/inbox?after=1",
        "/messages/inbox?after=1-zz",
        "/messages/dead/²",
        "/keys?older-than=²",
        "/unknown?since=0001-01-01T00:00%2B23:59",
        "/keys/resolve?until=9999-12-31T23:59-23:59",
        "/keys?boundary=a%00",
        "/messages/dead?error=%00",
        "/messages/inbox/redrive?consumer=%00",
    ],
)
async def test_faults_of_an_address_are_reported(ada: Visitor, path: str) -> None:
    assert (await ada.get(path)).status == 400


@pytest.mark.parametrize("topic", ["a\0b", "a\nb", "x" * 256])
async def test_a_name_that_no_topic_has_is_not_paused(shelf: Deck, ada: Visitor, topic: str) -> None:
    shelf.messages(("mail", "sent.v1", {}))
    page = await ada.get("/messages")
    (form,) = [one for one in page.forms if "topic" in one.fields and not one.fields["topic"]]
    assert (await ada.post(form.action, {**form.fields, "topic": topic}, Origin=BASE)).status == 400
    assert "Paused topics" not in (await ada.get("/messages")).text


@pytest.mark.parametrize("text", ["[" * 100_000, "1e999", "NaN", '"\\ud800"', "9" * 5000])
async def test_a_result_that_has_no_spelling_in_json_is_refused(shelf: Deck, ada: Visitor, text: str) -> None:
    shelf.unknown("K")
    page = await ada.submit(await ada.get("/"), "/keys/find", {"key": "K"})
    refused = await ada.submit(page, "/resolve", {"outcome": "completed", "result": text})
    assert (refused.status, states(shelf)) == (400, {"unknown"})


async def test_addresses_that_name_nothing_are_not_found(ada: Visitor) -> None:
    for path in ("/keys/00", f"/keys/{'0' * 64}", f"/keys/{'z' * 64}", "/messages/dead/77", "/operations/77"):
        assert (await ada.get(path)).status == 404


async def test_texts_with_statements_in_them_are_texts(shelf: Deck, ada: Visitor) -> None:
    shelf.completed("K")
    for text in ("' OR '1'='1", "%", "_", "\\", "payments'; DROP TABLE retrysafe_records; --"):
        for name in ("boundary", "operation", "scope"):
            page = await _with(ada, "/keys", {name: text})
            assert "No key matches." in page.text, text
    assert states(shelf) == {"completed"}


# ---------------------------------------------------------------- false names


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "10.0.0.1"]
)
async def test_a_name_that_leads_here_from_elsewhere_is_refused(shelf: Deck, host: str) -> None:
    console = shelf.console(hosts=["localhost", "127.0.0.1", "[::1]"])
    visitor = Visitor(console)
    for path in ("/", "/keys/", "/static/console.js"):  # the second one leads on to an address of the request's name
        assert (await visitor.get(path, Host=host)).status == 421
    for own in ("localhost", "LOCALHOST:8765", "127.0.0.1:8765", "[::1]:8765"):
        assert (await visitor.get("/", Host=own)).status == 200


async def test_the_user_of_this_machine_is_nobody_elsewhere(shelf: Deck) -> None:
    console = shelf.console(access=Local("resolve"))
    for address, status in (("127.0.0.1", 200), ("::1", 200), ("10.0.0.7", 403), ("unix", 403)):
        transport = httpx.ASGITransport(console, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            assert (await client.get("/")).status_code == status
    with pytest.raises(ConfigurationError, match="the rights are"):
        Local("everything")


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host"])
async def test_a_request_through_a_proxy_is_not_taken_for_the_user_of_this_machine(shelf: Deck, header: str) -> None:
    visitor = Visitor(shelf.console(access=Local("resolve")))
    assert (await visitor.get("/", **{header: "127.0.0.1"})).status == 403


# ---------------------------------------------------------------- helpers


async def _with(visitor: Visitor, path: str, fields: dict[str, str]) -> Page:
    return Page(await visitor.client.get(path, params=fields))


async def _key(visitor: Visitor, key: str = "K") -> Page:
    return await visitor.submit(await visitor.get("/"), "/keys/find", {"key": key})


async def _letters(visitor: Visitor) -> list[str]:
    pages = [await visitor.get(path) for path in ("/messages", "/messages/dead", "/messages/inbox")]
    found = [href for page in pages for href in page.links.values() if re.match(r"/messages/(dead|inbox)/\d", href)]
    return ["/messages", *found]


def _right_of(action: str) -> Right | None:
    for page in PAGES:
        if page.method == "POST" and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", page.path), action):
            return page.right
    raise AssertionError(action)


def _timeless(text: str) -> str:
    return re.sub(r"\d+(\.\d+)? (ms|s|m|h|d)\b", "", text)


# ---------------------------------------------------------------- the way back from a refusal


@pytest.mark.parametrize(
    ("referer", "back"),
    [
        ("http://localhost/keys?boundary=a", True),
        ("", False),
        ("https://evil.example/keys", False),
        ("http://localhost//evil.example/", False),
        ("http://localhost/\\evil.example/", False),
        ("http://localhost", False),
        ("http://[", False),
        ("javascript:alert(1)", False),
        ("http://localhost/nothing", False),
    ],
)
async def test_a_refusal_leads_back_to_pages_of_the_console_alone(ada: Visitor, referer: str, back: bool) -> None:
    page = await ada.get("/nothing", Referer=referer)
    assert page.status == 404
    assert page.links.get("Back to the page before") == ("/keys?boundary=a" if back else None)
