"""Stories of operators, in a real browser by the keyboard alone: the pages, and the store's state after them.

Each page on the way is judged by axe, and must fit into a wide and a narrow window. `test_stories` tells the same
stories on every store, without a browser.
"""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe.errors import OutcomeUnknown, StoredFailure
from retrysafe.messaging import MessageOutcome
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.records import Record
from tests.console.browsing import Keyboard
from tests.console.conftest import CARD, Deck, Site
from tests.messaging.inboxes import envelope

pytestmark = [pytest.mark.slow, pytest.mark.beside]

EVERY = ("resolve", "expire", "redrive", "pause", "reveal")
SETTLING, SETTLING_ALL = "Its effect happened", "Their effects happened"
ACTIONS = "form[method=post]:not([role=search]), main a.button:not(.pager *)"


def only(deck: Deck, boundary: str = "payments") -> Record:
    """The one key of the store."""
    (record,) = deck.place.operator().find(boundary=boundary)
    return record


def unknown(deck: Deck) -> int:
    """Count the unknown keys."""
    return len(deck.place.operator().find(states=["unknown"], limit=1000))


def stored(record: Record) -> Record:
    """A record without the time at which it was read."""
    return record._replace(now=0)


class Broker:
    """A broker that takes every message."""

    def __init__(self) -> None:
        self.took: list[Envelope] = []

    def __call__(self, taken: Envelope) -> PublishResult:
        self.took.append(taken)
        return PublishResult(PublishStatus.ACKED)


# ---------------------------------------------------------------- one key


def test_find_a_payment(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.unknown(*(f"order-{number}" for number in range(20)))
    shelf.completed("order-100", result={"charge": "ch_100"})
    keyboard.open(site("reveal"))
    keyboard.write("Find a key", "order-100")
    assert keyboard.press() == 200
    assert "A retry gets the stored result." in keyboard.text
    assert "ch_100" not in keyboard.page.content()
    *past, now, ahead = keyboard.page.locator(".timeline span").all_inner_texts()
    assert (len(past), now, ahead) == (2, "now, by the store's clock", "the window ends: results are kept for 1 d")
    assert "order-100" not in keyboard.page.url, "a key may be confidential, and addresses are logged"
    keyboard.go("Reveal")
    assert "ch_100" in keyboard.page.inner_text("#result ~ pre")
    assert [(entry["event"], entry["boundary"]) for entry in site.audited()] == [("revealed", "payments")]
    assert shelf.retried("order-100") == {"charge": "ch_100"}


def test_find_a_key_by_the_digits_in_the_log(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.completed("a", "b", "c")
    wanted = shelf.place.operator().find(boundary="payments")[1]
    keyboard.open(f"{site()}/keys")
    keyboard.write("Find a key", wanted.key.hex()[:10].upper())
    keyboard.press()
    assert keyboard.page.inner_text(".hash") == wanted.key.hex()
    assert "claimed for the first time" in keyboard.text
    keyboard.go("Keys")
    keyboard.write("Find a key", "0123456789")
    keyboard.press()
    assert "No record of this key." in keyboard.text
    assert [stored(one) for one in shelf.place.operator().find(boundary="payments")][1] == stored(wanted)


def test_settle_one_key_as_completed(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.unknown("K")
    keyboard.open(site("resolve"))
    keyboard.go("Look at this: 1 key is unknown")
    keyboard.go(only(shelf).key.hex()[:12])
    assert "is refused until the key is settled" in keyboard.text
    keyboard.choose(SETTLING, 0)
    keyboard.write("Result as JSON", '{"charge": "ch_1"}')
    keyboard.write("Reason", "seen at the provider")
    keyboard.go("Settle")
    assert "The key is settled." in keyboard.text
    assert keyboard.page.inner_text("h1 .chip") == "completed"
    keyboard.go("Unknown")
    assert "No key is unknown." in keyboard.text
    assert shelf.retried("K") == {"charge": "ch_1"}
    entry = site.audited()[-1]
    assert (entry["event"], entry["reason"], entry["done"]) == ("resolved", "seen at the provider", True)


def test_settle_one_key_as_failed(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.unknown("K")
    keyboard.open(f"{site('resolve')}/unknown")
    keyboard.go(only(shelf).key.hex()[:12])
    keyboard.choose(SETTLING, 1)
    keyboard.write("Result as JSON", "declined")
    keyboard.go("Settle")
    assert keyboard.page.inner_text("h1 .chip") == "failed"
    assert "A retry gets the stored failure" in keyboard.text
    with pytest.raises(StoredFailure, match="declined"):
        shelf.retried("K")


def test_a_release_takes_a_reason(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.unknown("K")
    keyboard.open(f"{site('resolve')}/unknown")
    keyboard.go(only(shelf).key.hex()[:12])
    keyboard.choose(SETTLING, 2)
    assert keyboard.go("Settle") == 400
    assert "Nothing was changed: say how you know that the effect did not happen." in keyboard.text
    assert unknown(shelf) == 1
    keyboard.go("Back to the page before")
    keyboard.choose(SETTLING, 2)
    keyboard.write("Reason", "no charge at the provider")
    keyboard.go("Settle")
    assert "The key is released: the next attempt runs the work." in keyboard.text
    assert shelf.retried("K") == "ran again"
    assert site.audited()[-1]["reason"] == "no charge at the provider"


def test_run_a_completed_key_again(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.completed("K")
    keyboard.open(site("expire"))
    keyboard.write("Find a key", "K")
    keyboard.press()
    keyboard.tick("The next use of this key runs the work again")
    keyboard.write("Reason", "the result was wrong")
    keyboard.go("End the window")
    assert "The window of the key has ended" in keyboard.text
    assert shelf.retried("K") == "ran again"
    entry = site.audited()[-1]
    assert (entry["event"], entry["reason"]) == ("expired", "the result was wrong")


def test_why_a_retry_is_refused(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.unknown("K")
    keyboard.open(site())
    keyboard.write("Find a key", "K")
    keyboard.press()
    said = keyboard.page.inner_text(".why")
    for told in (
        "it is not known whether its effect happened",
        "A retry is refused until the key is settled (OutcomeUnknown).",
        "the key was claimed for the first time",
        "the attempt ended in doubt",
    ):
        assert told in said, told
    assert "effects external" in keyboard.text
    assert "retrysafe keys resolve" in keyboard.text
    with pytest.raises(OutcomeUnknown):
        shelf.retried("K")


# ---------------------------------------------------------------- many keys


def test_settle_all_unknown(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.unknown(*(f"order-{number}" for number in range(30)))
    shelf.completed("order-100")
    keyboard.open(site("resolve"))
    keyboard.go("Look at this: 30 keys are unknown")
    keyboard.go("Settle all of them …")
    keyboard.choose(SETTLING_ALL, 2)
    keyboard.write("Reason", "outage")
    shelf.unknown("later")  # after the preview: left alone
    keyboard.tick("Settle 30")
    keyboard.go("Settle them")
    keyboard.load_until("done")
    assert "30 changed" in keyboard.text
    assert unknown(shelf) == 1
    assert shelf.retried("order-29") == "ran again"
    assert shelf.retried("order-100") == "first"
    settled = [entry for entry in site.audited() if entry["event"] == "resolved" and entry["audit"] == "outcome"]
    assert (len(settled), all(entry["reason"].startswith("outage") for entry in settled)) == (30, True)


def test_cancel_an_operation_that_runs(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.unknown(*(f"order-{number}" for number in range(250)))
    base, process = site.gated("resolve")
    _begin_to_settle(keyboard, base)
    _let_one_batch_through(process)
    _load_until(keyboard, "100 changed")
    keyboard.go("Cancel")
    _let_one_batch_through(process)  # the one that it was at
    keyboard.load_until("cancelled")
    assert "200 changed" in keyboard.text
    assert keyboard.page.locator(ACTIONS).count() == 0, "what was cancelled has ended"
    assert unknown(shelf) == 50
    keyboard.go("Operations")
    assert "cancelled" in keyboard.page.inner_text("tbody tr")


def test_resume_an_operation_whose_process_was_killed(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.unknown(*(f"order-{number}" for number in range(250)))
    base, process = site.gated("resolve")
    _begin_to_settle(keyboard, base)
    _let_one_batch_through(process)
    _load_until(keyboard, "100 changed")
    process.kill()
    process.wait(30)
    for record in shelf.place.operator().find(boundary="retrysafe.console", states=["running"]):
        shelf.place.age(record.key, 3_600_000_000)
    keyboard.open(f"{site('resolve')}/operations")
    keyboard.go("Settle unknown keys as released")
    assert keyboard.page.inner_text("h1 .chip") == "interrupted"
    assert "No process is at it." in keyboard.text
    keyboard.go("Resume")
    keyboard.load_until("done")
    assert "250 changed" in keyboard.text
    assert unknown(shelf) == 0
    assert shelf.retried("order-249") == "ran again"


def _begin_to_settle(keyboard: Keyboard, base: str) -> None:
    keyboard.open(f"{base}/keys/resolve")
    keyboard.choose(SETTLING_ALL, 2)
    keyboard.write("Reason", "outage")
    keyboard.tick("Settle 250")
    keyboard.go("Settle them")


def _let_one_batch_through(process: Any) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def _load_until(keyboard: Keyboard, text: str) -> None:
    while text not in keyboard.text:
        keyboard.go("Load again")


# ---------------------------------------------------------------- messages


def test_redrive_one_topic_but_one_type(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    placed, broken = [("orders", "placed.v1", {"n": 1})] * 3, [("orders", "broken.v1", {"n": 2})] * 2
    shelf.messages(*placed, *broken, ("mail", "sent.v1", {}))
    shelf.all_die()
    keyboard.open(site("redrive"))
    keyboard.go("Messages")
    keyboard.go("Dead letters")
    keyboard.write("Topic", "orders")
    keyboard.write("But not of type", "broken.v1")
    keyboard.press()
    assert "3 dead letters" in keyboard.text
    assert "retrysafe outbox dead list --topic orders --except-type broken.v1" in keyboard.text
    keyboard.go("Redrive these …")
    keyboard.write("Reason", "mended")
    keyboard.tick("Redrive 3")
    keyboard.go("Redrive them")
    keyboard.load_until("done")
    assert "3 changed" in keyboard.text
    broker = Broker()
    shelf.relay(broker)
    assert [message.type for message in broker.took] == ["placed.v1"] * 3
    keyboard.go("Messages")
    keyboard.go("Dead letters")
    assert "3 dead letters" in keyboard.text


def test_pause_a_topic(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.messages(("mail", "waiting.v1", {}))
    keyboard.open(f"{site('pause')}/messages")
    keyboard.go("Pause mail")
    assert keyboard.page.inner_text("tbody .chip") == "paused"
    broker = Broker()
    shelf.relay(broker)
    assert broker.took == []
    keyboard.go("Now")
    assert "Paused: mail." in keyboard.text
    keyboard.go("Look at this: Paused: mail.")
    keyboard.go("Resume mail")
    assert keyboard.page.inner_text("tbody .chip") == "open"
    shelf.relay(broker)
    assert [message.type for message in broker.took] == ["waiting.v1"]
    outcomes = [entry["event"] for entry in site.audited()]
    assert outcomes == ["topic_paused", "topic_resumed"]


def test_a_relay_that_is_gone(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.messages(("mail", "sent.v1", {}))
    shelf.sql(
        "INSERT INTO retrysafe_outbox_relays (name, hold, started_at, last_seen_at) "
        "SELECT 'relay-7@gone', 'transaction', created - 500000000, created - 125000000 FROM retrysafe_outbox",
        "UPDATE retrysafe_outbox SET created = created - 120000000",
    )
    keyboard.open(site())
    assert "no relay is running" in keyboard.text
    keyboard.go("Look at this: Relay relay-7@gone has been silent for")
    assert keyboard.page.inner_text("tbody tr").split()[:2] == ["relay-7@gone", "gone"]
    broker = Broker()
    shelf.relay(broker)  # somebody starts another one
    assert len(broker.took) == 1
    keyboard.go("Relays")
    assert "relay-7@gone" not in keyboard.text
    keyboard.go("Now")
    assert "Nothing needs a person." in keyboard.text


def test_why_a_message_is_dead_and_what_is_in_it(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    _dead_mail(shelf)
    keyboard.open(f"{site('reveal')}/messages/dead")
    keyboard.go(_identity(keyboard))
    assert "HTTP 422: no such template" in keyboard.text
    assert "after 1 attempt" in keyboard.text
    assert CARD not in keyboard.page.content()
    assert "header-secret" not in keyboard.page.content()
    keyboard.go("Reveal")
    assert CARD in keyboard.text
    assert "header-secret" in keyboard.text
    (entry,) = site.audited()
    assert (entry["event"], entry["topic"]) == ("revealed", "mail")


def test_a_payload_is_hidden_from_those_without_the_right(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    """By the page, by its address, and by a form that is forged in the browser."""
    _dead_mail(shelf)
    base = site(*set(EVERY) - {"reveal"})
    keyboard.open(f"{base}/messages/dead")
    keyboard.go(_identity(keyboard))
    assert "To see it takes the right “reveal”." in keyboard.text
    assert not keyboard.page.locator("form[action$='/reveal']").count()
    address = keyboard.page.url
    keyboard.open(f"{address}/reveal")
    assert keyboard.page.inner_text("h1") == "Not found"
    keyboard.open(base)
    assert _forge(keyboard, f"{address.removeprefix(base)}/reveal") == 403
    assert "reveal" in keyboard.text
    assert CARD not in keyboard.page.content()
    assert not site.audit.exists()


def _dead_mail(deck: Deck) -> None:
    deck.messages(("mail", "sent.v1", {"card": CARD}))
    deck.all_die("HTTP 422: no such template")


def _identity(keyboard: Keyboard) -> str:
    """The text of the link to the first message of a list."""
    return str(keyboard.page.locator("tbody th a.mono").first.inner_text())


def test_dead_letters_of_one_consumer_are_handled_again(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    handle = shelf.dead_in_an_inbox(*(envelope(number, number) for number in range(3)))
    shelf.dead_in_an_inbox(envelope(9), consumer="mail")
    keyboard.open(site("redrive"))
    keyboard.go("Look at this: Consumer stock has given up on 3 messages.")
    assert "LookupError: no such article" in keyboard.text
    keyboard.go("Redrive these …")
    keyboard.write("Reason", "articles are back")
    keyboard.tick("Redrive 3")
    keyboard.go("Redrive them")
    keyboard.load_until("done")
    assert "3 changed" in keyboard.text
    assert [one.became for one in handle.handle_marked()] == [MessageOutcome.HANDLED] * 3
    keyboard.go("Messages")
    keyboard.go("Inbox")
    assert "1 dead letter" in keyboard.text
    assert keyboard.page.locator("table").first.inner_text().count("stock") == 0


# ---------------------------------------------------------------- without rights


def test_a_reader_sees_no_action_and_a_forced_one_is_refused(shelf: Deck, site: Site, keyboard: Keyboard) -> None:
    shelf.unknown("K")
    shelf.messages(("mail", "sent.v1", {}))
    shelf.all_die()
    shelf.messages(("orders", "placed.v1", {}))
    shelf.dead_in_an_inbox(envelope(1))
    base = site()
    keyboard.open(base)
    areas = ("Now", "Keys", "Unknown", "Messages", "Dead letters", "Inbox", "Relays", "Boundaries", "Operations")
    for area in areas:
        keyboard.go(area)
        assert "read only" in keyboard.page.inner_text("header")
        assert keyboard.page.locator(ACTIONS).count() == 0, area
    key = only(shelf)
    keyboard.open(f"{base}/keys/{key.key.hex()}")
    assert "To settle it takes the right “resolve”." in keyboard.text
    seen = {"seen": f"{key.attempt}:{key.version}"}
    released = {"outcome": "released", "reason": "r", **seen}
    for path, fields in (
        (f"/keys/{key.key.hex()}/resolve", released),
        (f"/keys/{key.key.hex()}/expire", {"confirmed": "yes", **seen}),
        ("/messages/pause", {"topic": "orders"}),
    ):
        keyboard.open(base)
        assert _forge(keyboard, path, **fields) == 403, path
        assert "right" in keyboard.text
    for path in ("/keys/resolve", "/messages/dead/redrive", "/messages/inbox/redrive"):
        keyboard.open(f"{base}{path}")
        assert "right" in keyboard.text, path
        assert keyboard.page.locator(ACTIONS).count() == 0
    assert stored(only(shelf)) == stored(key)
    broker = Broker()
    shelf.relay(broker)
    assert [message.topic for message in broker.took] == ["orders"], "it is not paused, and nothing was redriven"


FORGED = """([action, fields]) => {
    const form = document.createElement("form");
    const token = document.querySelector("input[name=token]").value;
    for (const [name, value] of Object.entries({...fields, token})) {
        const field = document.createElement("input");
        [field.name, field.value] = [name, value];
        form.append(field);
    }
    [form.method, form.action] = ["post", action];
    document.body.append(form);
    form.submit();
}"""


def _forge(keyboard: Keyboard, action: str, **fields: str) -> int:
    """Submit a form that the page does not have, from its origin and with its token; returns the answer's status."""
    with keyboard.page.expect_navigation() as navigation:
        keyboard.page.evaluate(FORGED, [action, fields])
    keyboard.look()
    return int(navigation.value.status)
