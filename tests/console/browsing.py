"""A person at the keyboard of a real browser: each page that comes up must please axe and fit into its window."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

ACTIVE = "() => (document.activeElement.labels?.[0] ?? document.activeElement).textContent.trim().replace(/\\s+/g, ' ')"
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
CLIPPED = """() => [...document.querySelectorAll("main a, main button, main input, main label")]
    .filter(one => one.checkVisibility() && !one.closest(".scroll, .quiet"))
    .filter(one => { const box = one.getBoundingClientRect(); return box.left < 0 || box.right > innerWidth })
    .map(one => one.outerHTML)"""
MOST_TABS, MOST_LOADS = 150, 200
SHOTS = "RETRYSAFE_SHOTS"
"""The variable that names a folder for screenshots of every page, for people to look at."""


class Keyboard:
    """A tab of the browser that is used without a mouse.

    Attributes:
        page: Playwright's page.
        story: names the screenshots.
    """

    def __init__(self, page: Any, story: str) -> None:
        from axe_playwright_python.sync_playwright import Axe

        # pages would load themselves again while they are judged
        page.route("**/static/console.js*", lambda route: route.fulfill(content_type="text/javascript", body=""))
        self.page = page
        self.story = story
        self._axe = Axe()
        self._shots = 0

    @property
    def text(self) -> str:
        """The text of the page, with one space between words."""
        return " ".join(self.page.inner_text("main").split())

    def open(self, url: str) -> None:
        """Load an address."""
        self.page.goto(url)
        self.look()

    def tab_to(self, text: str) -> None:
        """Press Tab until what has the focus reads, or is labelled, so."""
        for _ in range(MOST_TABS):
            self.page.keyboard.press("Tab")
            if self.page.evaluate(ACTIVE).startswith(text):
                return
        pytest.fail(f"{text!r} is not reached by the keyboard on {self.page.url}")

    def write(self, label: str, text: str) -> None:
        """Fill in a field."""
        self.tab_to(label)
        self.page.keyboard.type(text)

    def tick(self, label: str) -> None:
        """Tick a box."""
        self.tab_to(label)
        self.page.keyboard.press("Space")

    def choose(self, first: str, number: int) -> None:
        """Choose an option of a group by its number; ``first`` is the label of the first one, where Tab stops."""
        self.tab_to(first)
        self.page.keyboard.press("Space")
        for _ in range(number):
            self.page.keyboard.press("ArrowDown")

    def press(self, key: str = "Enter") -> int:
        """Press a key that leads to another page; returns the status of its answer."""
        with self.page.expect_navigation() as navigation:
            self.page.keyboard.press(key)
        self.look()
        return int(navigation.value.status)

    def go(self, text: str) -> int:
        """Follow a link, or press a button; returns the status of the answer."""
        self.tab_to(text)
        return self.press()

    def load_until(self, chip: str) -> None:
        """Load the page of an operation again and again, until it stands so."""
        for _ in range(MOST_LOADS):
            if self.page.locator(f"h1 .chip.{chip}").count():
                return self.look()
            self.tab_to("Load again")
            with self.page.expect_navigation():
                self.page.keyboard.press("Enter")
        return pytest.fail(f"the operation is not {chip}, but: {self.text}")

    def look(self) -> None:
        """Judge the page, and keep a picture of it if somebody wants one."""
        folder = os.environ.get(SHOTS)
        if folder:
            self._shots += 1
            width = self.page.viewport_size["width"]
            path = Path(folder, f"{width}-{re.sub('[^a-z_]', '', self.story)}-{self._shots:02}.png")
            self.page.screenshot(path=path, full_page=True)
        found = self._axe.run(self.page)
        assert found.violations_count == 0, f"{self.page.url}: {found.generate_report()}"
        wider = self.page.evaluate(WIDER)
        assert wider <= 0, f"{self.page.url} is {wider} pixels wider than the window"
        clipped = self.page.evaluate(CLIPPED)
        assert not clipped, f"{self.page.url}: outside of the window: {clipped}"
