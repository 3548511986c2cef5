"""Stories of operators: each by the pages and forms that the console shows, without a script."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
from contextlib import redirect_stdout
from html import unescape
from typing import Any

import pytest

from retrysafe.admin.operator import Operator
from retrysafe.claims import context
from retrysafe.cli import main
from retrysafe.console import Principal, messages
from retrysafe.errors import OutcomeUnknown, StoredFailure
from retrysafe.messaging import MessageOutcome
from retrysafe.protocol.messages import PublishResult, PublishStatus
from tests.console.conftest import CARD, Deck
from tests.console.visiting import Page, Visitor
from tests.messaging.inboxes import envelope


async def ended(visitor: Visitor, page: Page) -> Page:
    """The page of an operation, loaded until it has ended."""
    async with asyncio.timeout(30):
        while 'class="chip waiting"' in page.html or 'class="chip running"' in page.html:
            page = await visitor.get(page.path)
    return page


async def test_find_a_customers_payment_by_its_order_number(deck: Deck, ada: Visitor) -> None:
    deck.completed(*(f"order-{number}" for number in range(20)), result={"charge": "ch_17"})
    deck.completed("order-7", operation="refund", scope="globex")
    page = await ada.submit(await ada.get("/"), "/keys/find", {"key": "order-17"})
    assert (page.status, page.path.count("/keys/")) == (200, 1)
    assert "charge completed" in page.text
    assert "A retry gets the stored result." in page.text
    assert "ch_17" not in page.html, "results are masked"
    assert "order-17" not in page.path, "a key may be confidential, and addresses are logged"
    two = await ada.submit(await ada.get("/"), "/keys/find", {"key": "order-7"})
    assert "2 keys match" in two.text
    assert "globex" in two.text


async def test_find_a_key_by_the_digits_in_the_log(deck: Deck, ada: Visitor) -> None:
    deck.completed("a", "b", "c")
    record = deck.place.operator().find(boundary="payments")[0]
    page = await ada.submit(await ada.get("/keys"), "/keys/find", {"key": record.key.hex()[:10].upper()})
    assert page.path == f"/keys/{record.key.hex()}"
    none = await ada.submit(page := await ada.get("/keys"), "/keys/find", {"key": "no such key"})
    assert "No record of this key." in none.text
    assert 'value="no such key"' in none.html, "what was typed stays in the form"


async def test_settle_500_unknown_keys_after_an_outage_of_the_provider(deck: Deck, ada: Visitor) -> None:
    names = [f"order-{number}" for number in range(500)]
    deck.unknown(*names)
    deck.unknown("other", operation="refund")
    deck.completed("fine")
    now = await ada.get("/")
    assert "501 keys are unknown" in now.text
    listed = await ada.get("/unknown?boundary=payments&operation=charge")
    assert "500 keys" in listed.text
    assert listed.commands()[0].startswith("retrysafe keys list --boundary payments --operation charge --state unknown")
    preview = await ada.follow(listed, "Settle these …")
    assert "500 keys" in preview.text
    deck.unknown("later")  # after the preview: left alone
    given = {"outcome": "released", "confirmed": "yes", "reason": "outage of 1 March, none was charged"}
    done = await ended(ada, await ada.submit(preview, "/operations", given))
    assert "500 changed" in done.text, done.text
    assert "cancelled" not in done.html
    left = deck.place.operator().find(states=["unknown"])
    assert {record.operation for record in left} == {"refund", "charge"}
    assert len(left) == 2
    assert deck.retried("order-499") == "ran again"
    outcomes = [entry for entry in deck.audited if entry["event"] == "resolved" and entry["audit"] == "outcome"]
    assert len(outcomes) == 500
    assert {entry["actor"] for entry in outcomes} == {"ada"}
    assert all(
        entry["reason"].startswith("outage of 1 March") and done.path[12:] in entry["reason"] for entry in outcomes
    )
    assert "Settle unknown keys as released" in (await ada.get("/operations")).text


async def test_settle_one_key_as_completed(deck: Deck, ada: Visitor) -> None:
    deck.unknown("K")
    page = await ada.follow(listed := await ada.get("/unknown"), next(iter(_keys(listed))))
    assert "is refused until the key is settled" in page.text
    fields = {"outcome": "completed", "result": '{"charge": "ch_1"}', "reason": "seen at the provider"}
    page = await ada.submit(page, "/resolve", fields)
    assert "The key is settled." in page.text
    assert deck.retried("K") == {"charge": "ch_1"}
    assert "No key is unknown." in (await ada.get("/unknown")).text


async def test_the_doctor_tells_of_unknown_keys_until_they_are_settled(deck: Deck, ada: Visitor) -> None:
    deck.unknown("K")
    page = await ada.get("/doctor")
    assert "warning: store-unknown" in page.text
    assert "1 key is unknown" in page.text
    assert any(line.startswith("retrysafe keys list --state unknown --store") for line in page.commands())
    operator = deck.place.operator()
    operator.resolve(operator.find(states=["unknown"])[0], "failed", result="none was charged")
    assert "store-unknown" not in (await ada.get("/doctor")).text


async def test_settle_one_key_as_failed(deck: Deck, ada: Visitor) -> None:
    deck.unknown("K")
    page = await ada.follow(listed := await ada.get("/unknown"), next(iter(_keys(listed))))
    refused = await ada.submit(page, "/resolve", {"outcome": "completed", "result": "not json"})
    assert (refused.status, "as JSON" in refused.text) == (400, True)
    await ada.submit(page, "/resolve", {"outcome": "failed", "result": "declined"})
    with pytest.raises(StoredFailure, match="declined"):
        deck.retried("K")


async def test_a_release_takes_a_reason(deck: Deck, ada: Visitor) -> None:
    """One key, and all that a filter selects."""
    deck.unknown("K")
    page = await ada.follow(listed := await ada.get("/unknown"), next(iter(_keys(listed))))
    refused = await ada.submit(page, "/resolve", {"outcome": "released", "reason": " "})
    assert (refused.status, "the next retry runs the work again" in refused.text) == (400, True)
    preview = await ada.get("/keys/resolve")
    refused = await ada.submit(preview, "/operations", {"outcome": "released", "confirmed": "yes"})
    assert (refused.status, "happens twice" in refused.text) == (400, True)
    assert len(deck.place.operator().find(states=["unknown"])) == 1


async def test_a_key_that_changed_since_its_page_was_loaded_is_left_alone(deck: Deck, ada: Visitor) -> None:
    deck.unknown("K")
    page = await ada.follow(listed := await ada.get("/unknown"), next(iter(_keys(listed))))
    operator = deck.place.operator()
    operator.resolve(operator.find(states=["unknown"])[0], "completed", result="by another")
    late = await ada.submit(page, "/resolve", {"outcome": "released", "reason": "none was charged"})
    assert (late.status, "completed by now" in late.text) == (409, True)
    assert deck.retried("K") == "by another"


async def test_run_a_completed_key_again(deck: Deck, ada: Visitor) -> None:
    deck.completed("K")
    page = await ada.submit(await ada.get("/"), "/keys/find", {"key": "K"})
    refused = await ada.submit(page, "/expire")
    assert (refused.status, "confirm" in refused.text) == (400, True)
    page = await ada.submit(page, "/expire", {"confirmed": "yes", "reason": "the result was wrong"})
    assert "its next use runs the work again" in page.text
    assert deck.retried("K") == "ran again"


async def test_why_a_retry_is_refused(deck: Deck) -> None:
    visitor = Visitor(deck.console(boundaries=[deck.boundary(window="48h")]))
    deck.unknown("K", window="48h")
    page = await visitor.submit(await visitor.get("/"), "/keys/find", {"key": "K"})
    for told in (
        "it is not known whether its effect happened",
        "A retry is refused until the key is settled (OutcomeUnknown).",
        "the key was claimed for the first time",
        "the attempt ended in doubt",
        "external: effects without a derived key",
        "172800 s",
        "amount",
    ):
        assert told in page.text, told
    with pytest.raises(OutcomeUnknown):
        deck.retried("K", window="48h")
    await visitor.close()


async def test_the_lapse_of_an_attempt_is_in_the_timeline(deck: Deck, ada: Visitor) -> None:
    claim = deck.place.boundary(lease=600).claim("K", payload={"amount": 5})
    claim.__enter__()
    context.innermost.set(None)
    deck.place.elapse("K", 610)
    with pytest.raises(OutcomeUnknown):
        deck.place.retry("K")
    page = await ada.submit(await ada.get("/"), "/keys/find", {"key": "K"})
    lapsed, found = "attempt 1 lapsed: its process had died", "a later request found that, and made the key unknown"
    assert page.text.index(lapsed) < page.text.index(found)
    assert "the attempt ended in doubt" not in page.text


async def test_redrive_the_dead_letters_of_one_topic_but_one_type(deck: Deck, ada: Visitor) -> None:
    deck.messages(
        *[("orders", "placed.v1", {"n": 1})] * 3, *[("orders", "broken.v1", {"n": 2})] * 2, ("mail", "sent.v1", {})
    )
    deck.all_die()
    page = await ada.get("/messages/dead")
    assert "6 dead letters" in page.text
    page = await ada.submit(page, "/messages/dead", {"topic": "orders", "except-type": "broken.v1"})
    assert "3 dead letters" in page.text
    preview = await ada.follow(page, "Redrive these …")
    assert "retrysafe outbox dead redrive --topic orders --except-type broken.v1" in preview.html
    done = await ended(ada, await ada.submit(preview, "/operations", {"confirmed": "yes", "reason": "mended"}))
    assert "3 changed" in done.text
    left = await ada.get("/messages/dead")
    assert "3 dead letters" in left.text
    broker: list[str] = []

    def take(envelope: Any) -> PublishResult:
        broker.append(envelope.type)
        return PublishResult(PublishStatus.ACKED)

    deck.relay(take)
    assert broker == ["placed.v1"] * 3


async def test_pause_and_resume_a_topic(deck: Deck, ada: Visitor) -> None:
    deck.messages(("mail", "sent.v1", {}))
    page = await ada.get("/messages")
    page = await ada.post("/messages/pause", {**page.forms[0].fields}, Origin="http://localhost")
    assert "paused" in page.text
    deck.relay(lambda envelope: pytest.fail("nothing of a paused topic leaves"))
    assert "Paused: mail." in (await ada.get("/")).text
    page = await ada.submit(page, "/messages/resume")
    assert "Paused" not in (await ada.get("/")).text
    assert [entry["event"] for entry in deck.audited] == ["topic_paused", "topic_resumed"]


async def test_a_relay_that_is_gone(deck: Deck, ada: Visitor) -> None:
    deck.messages(("mail", "sent.v1", {}))
    deck.sql(
        "INSERT INTO retrysafe_outbox_relays (name, hold, started_at, last_seen_at) "
        "SELECT 'relay-7@gone', 'transaction', created - 500000000, created - 125000000 FROM retrysafe_outbox",
        "UPDATE retrysafe_outbox SET created = created - 120000000",
    )
    now = await ada.get("/")
    assert "Relay relay-7@gone has been silent for 2.1 m" in now.text
    assert "no relay is running" in now.text
    relays = await ada.get("/messages/relays")
    assert "relay-7@gone gone" in relays.text


async def test_why_a_message_is_dead_and_what_is_in_it(deck: Deck, ada: Visitor) -> None:
    deck.messages(("mail", "sent.v1", {"card": CARD}))
    deck.all_die("HTTP 422: no such template")
    listed = await ada.get("/messages/dead")
    page = await ada.get(next(href for href in listed.links.values() if re.match(r"/messages/dead/\d", href)))
    assert "retrysafe outbox dead discard --id" in page.html
    assert "HTTP 422: no such template" in page.text
    assert CARD not in page.html
    assert "header-secret" not in page.html
    shown = await ada.submit(page, "/reveal")
    assert CARD in shown.text
    assert "header-secret" in shown.text
    (entry,) = deck.audited
    assert (entry["event"], entry["actor"], entry["topic"]) == ("revealed", "ada", "mail")


async def test_a_stored_result_is_shown_to_who_may_see_it_and_the_look_is_audited(deck: Deck, ada: Visitor) -> None:
    deck.completed("K", result={"iban": "DE02120300000000202051"})
    page = await ada.submit(await ada.get("/"), "/keys/find", {"key": "K"})
    assert "DE02120300000000202051" not in page.html
    shown = await ada.submit(page, "/reveal", {"reason": "ticket 7"})
    assert "DE02120300000000202051" in shown.text
    (entry,) = deck.audited
    assert (entry["event"], entry["reason"], entry["actor"]) == ("revealed", "ticket 7", "ada")


async def test_a_reader_sees_the_same_and_changes_nothing(deck: Deck) -> None:
    deck.unknown("K")
    deck.messages(("mail", "sent.v1", {}))
    deck.all_die()
    visitor = Visitor(deck.console(Principal("rita")))
    for path in ("/", "/keys", "/unknown", "/messages", "/messages/dead", "/messages/inbox", "/operations"):
        page = await visitor.get(path)
        assert page.status == 200
        assert "read only" in page.text
        assert [form.action for form in page.forms if form.method == "post" and "find" not in form.action] == []
    key = await visitor.submit(await visitor.get("/"), "/keys/find", {"key": "K"})
    assert "takes the right “resolve”" in key.text
    await visitor.close()


async def test_the_list_is_paged_and_each_key_is_shown_once(deck: Deck, ada: Visitor) -> None:
    deck.completed(*(f"k{number}" for number in range(120)))
    deck.unknown(*(f"u{number}" for number in range(60)))
    for path, number in (("/keys?boundary=payments&state=completed", 120), ("/unknown", 60)):
        page, seen = await ada.get(path), list[str]()
        while True:
            seen += _keys(page)
            if "Next page" not in page.links:
                break
            page = await ada.follow(page, "Next page")
        assert len(seen) == len(set(seen)) == number


async def test_the_last_written_come_first_and_the_filter_offers_what_is_listed(deck: Deck, ada: Visitor) -> None:
    for number in range(60):
        deck.completed(f"k{number}", scope="eu" if number % 2 else "us")
    page = await ada.submit(await ada.get("/keys"), "/keys", {"order": "newest"})
    with Operator(deck.url, observers=()) as operator:
        written = sorted(operator.each(), key=lambda record: record.updated, reverse=True)
    assert _keys(page) == [record.key.hex()[:12] for record in written[:50]]
    assert unescape(page.commands()[0]).endswith("--newest")
    assert [f'<option value="{scope}">' in page.html for scope in ("eu", "us", "asia")] == [True, True, False]
    assert len(_keys(await ada.submit(page, "/keys", {"scope": "eu"}))) == 30


async def test_the_command_beside_a_filter_selects_the_same(deck: Deck, ada: Visitor) -> None:
    deck.completed("a; rm -rf /", "b", scope="it's $HOME")
    deck.completed("c")
    page = await ada.submit(await ada.get("/keys"), "/keys", {"scope": "it's $HOME", "older-than": "1ms"})
    command = unescape(page.commands()[0])
    said = io.StringIO()
    with redirect_stdout(said):
        assert main([*shlex.split(command)[1:], "--json", "--store", deck.url]) == 0
    assert len(said.getvalue().splitlines()) == len(_keys(page)) == 2


async def test_dead_letters_of_one_consumer_are_handled_again(deck: Deck, ada: Visitor) -> None:
    handle = deck.dead_in_an_inbox(*(envelope(number, number) for number in range(3)))
    deck.dead_in_an_inbox(envelope(9), consumer="mail")
    assert "Consumer stock has given up on 3 messages." in (await ada.get("/")).text
    page = await ada.get("/messages/inbox?consumer=stock")
    assert "3 dead letters" in page.text
    letter = await ada.get(next(href for href in page.links.values() if href.startswith("/messages/inbox/1")))
    assert "LookupError: no such article" in letter.text
    shown = await ada.submit(letter, "/reveal")
    assert '{"n":1}' in shown.text
    preview = await ada.follow(page, "Redrive these …")
    deck.dead_in_an_inbox(envelope(4))  # after the preview: left alone
    done = await ended(
        ada, await ada.submit(preview, "/operations", {"confirmed": "yes", "reason": "articles are back"})
    )
    assert "3 changed" in done.text
    assert "3 messages of consumer stock wait to be handled again." in (await ada.get("/")).text
    assert [one.became for one in handle.handle_marked()] == [MessageOutcome.HANDLED] * 3
    assert "2 dead letters" in (await ada.get("/messages/inbox")).text


@pytest.mark.parametrize("side", ["dead", "inbox"])
async def test_large_dead_letters_that_died_at_once_are_all_listed_and_shown(
    deck: Deck, ada: Visitor, side: str
) -> None:
    """A page has fewer of them, and is not the last one for that."""
    payload = "x" * 500_000
    if side == "dead":
        deck.messages(*((f"topic-{number}", "sent.v1", payload) for number in range(12)))
        for _ in range(12):
            deck.all_die()
    else:
        deck.dead_in_an_inbox(*(envelope(number, number, f'"{payload}"'.encode()) for number in range(12)))
        deck.sql("UPDATE retrysafe_inbox_dead SET dead_at = 1700000000000000")
    page, seen = await ada.get(f"/messages/{side}"), list[str]()
    while True:
        seen += re.findall(f'href="(/messages/{side}/[0-9][^"]*)"', page.html)
        if "Next page" not in page.links:
            break
        page = await ada.follow(page, "Next page")
    assert len(seen) == len(set(seen)) == 12
    for href in seen:
        assert (await ada.get(href)).status == 200


async def test_a_count_by_a_filter_says_when_it_looked_at_some_alone(
    deck: Deck, ada: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    deck.messages(*[("mail", "sent.v1", {})] * 3, *[("orders", "placed.v1", {})] * 3)
    deck.relay(lambda envelope: PublishResult(PublishStatus.REJECTED, "no"))
    monkeypatch.setattr(messages, "MOST_COUNTED", 4)
    page = await ada.get("/messages/dead?topic=orders")
    assert "at least 1 dead letter" in page.text
    assert "at least 1 dead letter" in (await ada.follow(page, "Redrive these …")).text
    assert "No dead letter matches." in (await ada.get("/messages/dead?topic=none")).text


def _keys(page: Page) -> list[str]:
    """The texts of the links to keys."""
    return [text for text, href in page.links.items() if len(href) == len("/keys/") + 64]
