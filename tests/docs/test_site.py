"""The site as a reader's browser shows it: its links, its search, its width.

It needs MkDocs with its theme (the extra ``docs``), Chromium, and Playwright (the extra ``browser``); `make prove`
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
"""The words of a reader, and the pages that may be found first."""
LOOKED_AT = ("", "how-to/http-fastapi/", "reference/glossary/")
WIDTHS = (1400, 390)
CUT = """[...document.querySelectorAll("article pre > code")].filter(one => one.scrollWidth > one.clientWidth)
    .map(one => one.textContent)"""
"""Blocks of code that must be scrolled."""
FIRST = ".md-search-result__item > a.md-search-result__link"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, which is built with every warning as an error."""
    if importlib.util.find_spec("material") is None:
        unfetched("no MkDocs with its theme (pip install '.[docs]')")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
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
def test_the_search_finds_the_page_first(word: str, site: str, browser: Any) -> None:
    page = browser.new_page()
    page.goto(site)
    page.wait_for_selector("[data-md-component=search-query]", state="attached")
    page.keyboard.press("/")
    page.keyboard.type(word)
    page.wait_for_selector(FIRST)
    page.wait_for_function("selector => document.querySelector(selector).href.includes('?h=')", arg=FIRST)
    found = page.query_selector(FIRST).evaluate("link => link.href").removeprefix(site).partition("?")[0]
    page.close()
    assert found in SEARCHED[word]


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
