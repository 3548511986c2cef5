"""Links between pages lead somewhere, and no page is left out of the table of contents."""

from __future__ import annotations

import re
from pathlib import Path

import retrysafe
from tests.docs.pages import PAGES, ROOT
from tests.tables import each_row

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@each_row("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if page.name != "README.md":
            assert target.is_relative_to(ROOT / "docs"), f"{link} leads out of the documentation site"
        if anchor:
            assert anchor in _anchors(target), f"{link}: no such heading"


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"([\w/.-]+\.md)", contents.partition("\nnav:")[2])
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.name != "README.md"]
    assert sorted(listed) == sorted(pages)


def test_the_home_page_links_to_every_page() -> None:
    """Decisions and problems have lists of their own."""
    linked = set(_LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    pages = [page.relative_to(ROOT / "docs") for page in PAGES if page.name != "README.md"]
    expected = [page.as_posix() for page in pages if page.parent.name not in ("decisions", "problems")]
    assert set(expected) - linked - {"index.md"} == set()


def test_the_site_has_at_most_seven_groups() -> None:
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert len(re.findall(r"^  - ", contents, re.MULTILINE)) <= 7


def test_the_page_on_upgrades_tells_what_to_do_for_this_version() -> None:
    page = (ROOT / "docs" / "how-to" / "upgrade.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert 1 <= len(re.findall(r"^- ", sections[retrysafe.__version__], re.MULTILINE)) <= 5
