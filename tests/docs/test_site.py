"""The site as a reader's browser shows it: its links, its search, its width.

It needs the generator (the extra ``docs``), Chromium, and Playwright (the extra ``browser``); `make prove`
installs them, and `make test` leaves these tests to it.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.conftest import unfetched
from tests.docs.pages import ROOT
from tests.tables import each_row

pytestmark = [pytest.mark.slow, pytest.mark.beside]

SEARCHED = {
    "install": ("", "reference/extras/"),
    "quickstart": ("",),
    "prometheus": ("how-to/deploy/", "how-to/observe-and-log/"),
    "admin": ("how-to/console/", "how-to/operate-keys/"),
}
"""The words of a reader, and the pages of which one must be among the first results."""
LOOKED_AT = ("", "how-to/http-fastapi/", "reference/glossary/")
WIDTHS = (1400, 390)
CUT = """[...document.querySelectorAll("article pre > code")].filter(one => one.scrollWidth > one.clientWidth)
    .map(one => one.textContent)"""
"""Blocks of code that must be scrolled."""
RESULTS = 3
"""Results of a search that a reader sees at once."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, which is built with every warning as an error."""
    if importlib.util.find_spec("zensical") is None:
        unfetched("no generator of the site (pip install '.[docs]')")
    folder = tmp_path_factory.mktemp("site")  # the generator writes beside its configuration
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder / "site"))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None or importlib.util.find_spec("playwright") is None:
        unfetched("no browser: install Chromium, and Playwright (pip install '.[browser]')")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("word", SEARCHED)
def test_the_search_finds_the_page_among_the_first(word: str, site: str, browser: Any) -> None:
    page = browser.new_page()
    page.goto(site)
    page.get_by_role("button", name="Search").click()
    page.get_by_role("combobox", name="Search").fill(word)
    page.locator(f"[role=option][href*='?h={word}']").first.wait_for()
    found = [link.get_attribute("href") for link in page.get_by_role("option").all()[:RESULTS]]
    page.close()
    assert {link.removeprefix(site).partition("?")[0] for link in found} & set(SEARCHED[word])


@each_row("width", WIDTHS)
@each_row("path", LOOKED_AT)
def test_no_page_is_wider_than_its_window(path: str, width: int, site: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": width, "height": 1000})
    page.goto(site + path)
    beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    cut = page.evaluate(CUT)
    page.close()
    assert beyond <= 0
    if width == max(WIDTHS):
        assert cut == []
