"""The pages of runs: what an operator sees of work in steps, and how one run is given up."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from retrysafe.console import Principal
from retrysafe.protocol.steps import At
from tests.console.conftest import CARD, Deck
from tests.console.visiting import Visitor


def trip(deck: Deck, key: str, **fails: Exception) -> Any:
    """A flight that can be undone, and a mail."""

    def step(name: str) -> str:
        if name in fails:
            raise fails[name]
        return CARD

    with deck.boundary("trips", effects="keyed", permanent=ValueError).claim(key) as claim:
        if not claim.replayed:
            claim.step("flight <b>", step, "flight", undo=lambda booked: step("undo"))
            claim.step("mail", step, "mail", effects="external")
            claim.result = 1
        return claim.result


async def test_a_stranded_run_is_found_and_given_up(deck: Deck, ada: Visitor) -> None:
    trip(deck, "done")
    with pytest.raises(ConnectionError):
        trip(deck, "left", mail=ConnectionError())
    deck.completed("plain")
    assert "would go on" not in (await ada.get("/")).text
    deck.place.age(bytes.fromhex(_hash(deck, "left")), 7_200_000_000)
    now = await ada.get("/")
    assert "1 run of trips would go on, and is not asked for any more, for up to 2 h." in now.text
    listed = await ada.get("/runs")
    assert "2 runs" in listed.text
    stranded = await ada.get("/runs?stranded=yes")
    assert ("1 run" in stranded.text, "'mail' started" in stranded.text) == (True, True)
    page = await ada.follow(stranded, _hash(deck, "left")[:12])
    assert "In doubt Step 'mail' was begun, and it is not known whether it happened." in page.text
    assert "flight <b> : done, can be undone" in page.text
    assert CARD not in page.html
    refused = await ada.submit(page, "/cancel", {"reason": "the customer left"})
    assert (refused.status, "Nothing was changed" in refused.text) == (400, True)
    done = await ada.submit(page, "/cancel", {"confirmed": "yes", "reason": "the customer left"})
    assert "The run is given up" in done.text
    assert "goes back, because of Cancelled: the customer left" in done.text
    assert [entry["audit"] for entry in deck.audited if entry["event"] == "run_cancelled"] == ["intent", "outcome"]
    again = await ada.submit(page, "/cancel", {"confirmed": "yes", "reason": "twice"})
    assert "goes back already" in again.text


async def test_the_page_of_a_key_names_its_step_and_a_reader_changes_nothing(shelf: Deck) -> None:
    with suppress(Exception):
        trip(shelf, "K", mail=ValueError("bounced"), undo=KeyError("no such booking"))
    visitor = Visitor(shelf.console(Principal("eve")))
    page = await visitor.get(f"/keys/{_hash(shelf, 'K')}")
    assert "Step 'flight <b>' was to be undone, and it is not known whether that happened." in page.text
    assert "could not be undone: KeyError('no such booking')" in page.text
    run = await visitor.follow(page, "Its steps")
    assert "runs resolve" in " ".join(run.commands())
    assert [form for form in run.forms if form.action.endswith("/cancel")] == []
    assert (await visitor.get(f"/runs/{'0' * 64}")).status == 404
    operator = shelf.place.operator()
    record = operator.show(bytes.fromhex(_hash(shelf, "K")))
    assert record is not None
    assert operator.resolve_step(operator.show_run(record), At("flight <b>"), "undone").done
    for path in ("keys", "runs"):
        settled = await visitor.get(f"/{path}/{_hash(shelf, 'K')}")
        assert "Its steps are undone when it is asked for again with its key" in settled.text
    await visitor.close()


def _hash(deck: Deck, key: str) -> str:
    return deck.place.operator().hash_of(key, boundary="trips").hex()
