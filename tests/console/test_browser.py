"""A real browser, headless: every page is accessible by axe's rules, works without scripts, and is nobody's frame.

It needs Chromium, and Playwright and axe for Python (the extra ``browser``); `make prove` installs them, and
`make test` leaves these tests to it. What operators do in it is in `test_browser_stories`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.browsing import ACTIVE, Keyboard
from tests.console.conftest import Deck, Site
from tests.messaging.inboxes import envelope

pytestmark = pytest.mark.beside

PATHS = (
    "/",
    "/keys",
    "/keys?boundary=none",
    "/unknown",
    "/keys/resolve",
    "/messages",
    "/messages/dead",
    "/messages/dead/redrive",
    "/messages/inbox",
    "/messages/relays",
    "/boundaries",
    "/doctor",
    "/operations",
    "/nothing",
)
EVERY = ("resolve", "expire", "redrive", "pause", "reveal")


@pytest.fixture
def stocked(shelf: Deck) -> Deck:
    """Something of everything."""
    shelf.unknown(*(f"order-{number}" for number in range(30)))
    shelf.completed("order-100", result={"charge": "ch_100"})
    shelf.messages(*[("orders", "placed.v1", {"n": 1})] * 3, ("mail", "sent.v1", {"to": "ada"}))
    shelf.all_die()
    shelf.messages(("mail", "waiting.v1", {}))
    shelf.dead_in_an_inbox(envelope(1))
    return shelf


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A tab, with the console's script."""
    opened = chromium.new_page(viewport={"width": 1280, "height": 800})
    opened.set_default_timeout(15_000)
    yield opened
    opened.close()


@pytest.mark.slow
def test_the_first_tab_leads_past_the_navigation(stocked: Deck, site: Site, keyboard: Keyboard) -> None:
    keyboard.open(f"{site()}/keys")
    keyboard.tab_to("Skip to the content")
    keyboard.page.keyboard.press("Enter")
    assert keyboard.page.evaluate("() => document.activeElement.id") == "main"
    keyboard.page.keyboard.press("Tab")
    assert keyboard.page.evaluate(ACTIVE).startswith("Find a key")


def test_the_page_of_an_operation_loads_itself_again(stocked: Deck, site: Site, page: Any) -> None:
    page.goto(f"{site(*EVERY)}/messages/dead/redrive")
    page.check("input[name=confirmed]")
    page.click("button:has-text('Redrive them')")
    page.wait_for_selector(".chip.done")
    assert "4 changed" in page.inner_text("main")


def test_a_filter_that_is_not_set_is_folded_on_a_phone(stocked: Deck, site: Site, page: Any) -> None:
    address = site()
    folded = {}
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        for path in ("/keys", "/keys?state=unknown", "/runs", "/messages/dead"):
            page.goto(address + path)
            folded[width, path] = not page.is_visible(".filter button")
    assert [one for one, hidden in folded.items() if hidden] == [
        (390, "/keys"),
        (390, "/runs"),
        (390, "/messages/dead"),
    ]


def test_it_works_without_scripts(stocked: Deck, site: Site, chromium: Any) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site(*EVERY)}/keys/resolve")
    page.check("input[value=released]")
    page.fill("#reason", "none was charged")
    page.check("input[name=confirmed]")
    page.click("button:has-text('Settle them')")
    while "running" in (chip := page.inner_text("h1 .chip")) or "waiting" in chip:
        page.click("text=Load again")
    assert "30 changed" in page.inner_text("main")
    context.close()


# ---------------------------------------------------------------- accessible, and nobody's frame


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390, 320])
def test_axe_finds_nothing(stocked: Deck, site: Site, chromium: Any, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
    base = site(*EVERY)
    paths = [*PATHS, *_details(page, base)]
    for path in paths:
        page.goto(f"{base}{path}")
        found = Axe().run(page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        wide = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{path} is {wide} pixels wider than the window"
    page.close()


def _details(page: Any, base: str) -> list[str]:
    found = []
    for listed in ("/unknown", "/keys?state=completed", "/messages/dead", "/messages/inbox"):
        page.goto(f"{base}{listed}")
        found.append(page.locator("tbody th a.mono").first.get_attribute("href"))
    return found


def test_the_policy_lets_every_page_work_and_no_script_in(stocked: Deck, site: Site, page: Any) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    base = site(*EVERY)
    for path in (*PATHS[:-1], *_details(page, base)):
        page.goto(f"{base}{path}")
    assert said == []
    page.evaluate(
        "() => { const s = document.createElement('script'); s.text = 'window.x = 1'; document.body.append(s) }"
    )
    assert page.evaluate("() => window.x") is None


def test_another_page_cannot_frame_it_or_submit_its_forms(stocked: Deck, site: Site, chromium: Any) -> None:
    base = site(*EVERY)
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{base}/unknown")
    page.route("http://evil.example/*", lambda route: route.fulfill(content_type="text/html", body=_EVIL.format(base)))
    page.goto("http://evil.example/")
    assert not [frame for frame in page.frames[1:] if "Unknown" in frame.content()]
    with page.expect_navigation():
        page.click("button")
    assert page.locator("h1").inner_text() == "Refused"
    assert len(stocked.place.operator().find(states=["unknown"])) == 30
    context.close()


_EVIL = """<!doctype html><iframe src="{0}/unknown"></iframe>
<form method="post" action="{0}/messages/pause"><input name="topic" value="mail"><button>Win</button></form>"""
