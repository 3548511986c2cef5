"""The page of loads: the parts of tables, and the runs that loaded them."""

from __future__ import annotations

from html import unescape

from retrysafe.loads import Loads
from tests.console.conftest import Deck
from tests.console.visiting import Visitor


async def test_the_last_load_of_each_part_is_listed(deck: Deck, ada: Visitor) -> None:
    assert "No load matches." in (await ada.get("/loads?table=of_the_console")).text
    deck.sql("CREATE TABLE of_the_console (day VARCHAR(20), amount INT, loaded_by VARCHAR(40))")
    try:
        loads = Loads(deck.boundary("nightly", effects="keyed"), deck.url)
        for day, run in (("2026-11-28", "first"), ("2026-11-29", "<b>")):
            loads.load("of_the_console", by="day", partition=day, rows=lambda day=day: [(day, 1)], run=run)
        listed = await ada.get("/loads?table=of_the_console")
        assert "2 parts" in listed.text
        assert listed.text.index("2026-11-28 first 1") < listed.text.index("2026-11-29 <b> 1")
        one = await ada.follow(listed, "<b>")
        assert ("1 part" in one.text, "first" in one.text) == (True, False)
        assert unescape(one.commands()[1]).endswith(" '<b>'")
    finally:
        deck.sql("DROP TABLE of_the_console")
