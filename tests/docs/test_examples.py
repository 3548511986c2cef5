"""Every example of README and docs does what the page says."""

from __future__ import annotations

import json
import logging
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary
from tests.docs.conftest import broker_of
from tests.docs.pages import PAGES, ROOT, hidden, parse, touched
from tests.messaging.harnesses import HARNESSES
from tests.tables import each_row

_ONLY_SHOWN = re.compile(r"(pip install|make|git clone|docker|locust|k6) .*")


TOUCHED = touched()


SERVERS = {
    "DATABASE_URL": "database",
    "MYSQL_URL": "mysql_database",
    "DYNAMODB_URL": "dynamodb",
    'client("s3")': "s3_endpoint",
}
"""Variables that a page may name, each with the fixture that sets it."""


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.slow
@pytest.mark.usefixtures("workplace", "store_servers")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page in TOUCHED else pytest.mark.one_of("pages", of=10)) for page in PAGES],
    ids=_name,
)
def test_examples_do_what_the_page_says(page: Path, request: pytest.FixtureRequest) -> None:
    text = page.read_text(encoding="utf-8")
    for variable, fixture in SERVERS.items():
        if variable in text:
            request.getfixturevalue(fixture)
    document = parse(page)
    document.namespace["__name__"] = "__main__"
    with ExitStack() as stack:
        stack.callback(logging.getLogger().setLevel, logging.getLogger().level)  # Litestar lets everybody log
        for harness in HARNESSES.values():
            if harness.page is not None and harness.page.variable in text:
                stack.enter_context(broker_of(harness))
        stack.callback(_close_boundaries, document.namespace)
        for example in document.examples():
            example.evaluate()


def _close_boundaries(names: dict[str, Any]) -> None:
    for value in names.values():
        if isinstance(value, Boundary):
            value.close()


@each_row("page", [page for page in PAGES if page.parent.name == "how-to"], ids=_name)
def test_every_how_to_shows_something_that_runs(page: Path) -> None:
    assert list(parse(page).examples())


@each_row("page", PAGES, ids=_name)
def test_every_code_block_is_run_or_has_a_reason(page: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for language, body in blocks:
        assert language in ("python", "console", "sh", "mermaid", "text", "sql", "json"), f"a block in {language!r}"
        if language == "json":
            json.loads(body)
        if language == "sh":
            for line in body.splitlines():
                assert _ONLY_SHOWN.fullmatch(line), f"{line!r} could be run: make it a console block"


@each_row("page", PAGES, ids=_name)
def test_a_reader_sees_everything_that_an_example_needs(page: Path) -> None:
    """Blocks that are not shown only clean up: the last one that is shown comes before them."""
    document = parse(page)
    unseen = hidden(document)
    shown = [region.start for _, region in document.regions if region not in unseen]
    early = [document.text[region.start :][:120] for region in unseen if region.start < max(shown)]
    assert early == []


@each_row("page", sorted((ROOT / "docs/how-to").glob("http-*.md")), ids=_name)
def test_a_frameworks_page_says_how_to_make_the_tables(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "migrate" in text or page.name == "http-client.md"
    assert "INSTALLED_APPS" in text or page.name not in ("http-django.md", "http-drf.md")


def test_the_readmes_example_has_at_most_nine_lines() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"^```python\n# main.py\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert match is not None
    assert len([line for line in match[1].splitlines() if line.strip()]) <= 9


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
