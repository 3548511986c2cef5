"""A real browser, headless: stories by the keyboard alone, without scripts, and accessible by axe's rules.

It needs Chromium, and Playwright and axe for Python (the extra ``browser``); without them the tests are skipped, and
fail in CI.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import absent
from tests.console.conftest import Deck
from tests.messaging.inboxes import envelope
from tests.operating.conftest import SOURCES

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
    "/operations",
    "/nothing",
)
ACTIVE = "() => (document.activeElement.labels?.[0] ?? document.activeElement).textContent.trim().replace(/\\s+/g, ' ')"
MOST_TABS = 150


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    missing = [name for name in ("playwright", "axe_playwright_python") if importlib.util.find_spec(name) is None]
    if path is None or missing:
        absent(f"no browser: install Chromium, and {', '.join(missing) or 'nothing else'} (pip install '.[browser]')")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def site(shelf: Deck) -> Iterator[Callable[..., str]]:
    """Serves the shelf, with these rights, and returns the address."""
    served: list[subprocess.Popen[str]] = []

    def serve(*rights: str) -> str:
        allowed = [part for right in rights for part in ("--allow", right)]
        command = [sys.executable, "-m", "retrysafe", "console", "--store", shelf.url, "--port", "0", *allowed]
        environment = {**os.environ, "PYTHONPATH": SOURCES}
        served.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        stdout = served[-1].stdout
        assert stdout is not None
        return stdout.readline().split()[1].rstrip("/")

    yield serve
    for one in served:
        one.terminate()
        one.wait(30)
        assert one.stdout is not None
        one.stdout.close()


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
    """A tab."""
    opened = chromium.new_page(viewport={"width": 1280, "height": 800})
    opened.set_default_timeout(15_000)
    yield opened
    opened.close()


def tab_to(page: Any, text: str) -> None:
    """Press Tab until what has the focus reads, or is labelled, so."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if page.evaluate(ACTIVE).startswith(text):
            return
    pytest.fail(f"{text!r} is not reached by the keyboard on {page.url}")


def go(page: Any, text: str) -> None:
    """Follow a link, or press a button, by the keyboard."""
    tab_to(page, text)
    with page.expect_navigation():
        page.keyboard.press("Enter")


# ---------------------------------------------------------------- stories by the keyboard


def test_find_a_payment(stocked: Deck, site: Callable[..., str], page: Any) -> None:
    page.goto(site("reveal"))
    tab_to(page, "Find a key")
    page.keyboard.type("order-100")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "A retry gets the stored result." in page.inner_text("main")
    assert "ch_100" not in page.content()
    go(page, "Reveal")
    assert "ch_100" in page.inner_text("#result ~ pre")


def test_settle_all_unknown(stocked: Deck, site: Callable[..., str], page: Any) -> None:
    page.goto(site(*EVERY))
    go(page, "Look")
    go(page, "Settle all of them …")
    tab_to(page, "Their effects happened")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    tab_to(page, "Reason")
    page.keyboard.type("outage")
    tab_to(page, "Settle 30")
    page.keyboard.press("Space")
    go(page, "Settle them")
    page.wait_for_selector(".chip.done")
    assert "30 changed" in page.inner_text("main")
    assert not stocked.place.operator().find(states=["unknown"])


def test_redrive_one_topic(stocked: Deck, site: Callable[..., str], page: Any) -> None:
    page.goto(site(*EVERY))
    go(page, "Messages")
    go(page, "Dead letters")
    tab_to(page, "Topic")
    page.keyboard.type("orders")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    go(page, "Redrive these …")
    tab_to(page, "Redrive 3")
    page.keyboard.press("Space")
    go(page, "Redrive them")
    page.wait_for_selector(".chip.done")
    assert "3 changed" in page.inner_text("main")


def test_pause_a_topic(stocked: Deck, site: Callable[..., str], page: Any) -> None:
    page.goto(f"{site(*EVERY)}/messages")
    go(page, "Pause mail")
    assert page.inner_text("tbody .chip") == "paused"
    go(page, "Resume mail")
    assert page.inner_text("tbody .chip") == "open"


def test_the_first_tab_leads_past_the_navigation(stocked: Deck, site: Callable[..., str], page: Any) -> None:
    page.goto(f"{site()}/keys")
    tab_to(page, "Skip to the content")
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate(ACTIVE).startswith("Find a key")


def test_it_works_without_scripts(stocked: Deck, site: Callable[..., str], chromium: Any) -> None:
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_nothing(stocked: Deck, site: Callable[..., str], chromium: Any, scheme: str, width: int) -> None:
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


def test_the_policy_lets_every_page_work_and_no_script_in(stocked: Deck, site: Callable[..., str], page: Any) -> None:
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


def test_another_page_cannot_frame_it_or_submit_its_forms(
    stocked: Deck, site: Callable[..., str], chromium: Any
) -> None:
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
