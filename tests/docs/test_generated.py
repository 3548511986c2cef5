"""The generated parts of the documentation are what the code says."""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

import retrysafe
from tests.docs.pages import PAGES, ROOT
from tests.tables import each_row


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """Load the module that the script runs on; the script itself names its place."""
    loader = SourceFileLoader("generate_docs", str(ROOT / "scripts" / "generate-docs"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return import_module("docparts.pages")


@each_row("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_committed_page_is_what_would_be_generated(page: Path, generator: ModuleType) -> None:
    text = page.read_text(encoding="utf-8")
    assert generator.regenerated(text) == text, "run scripts/generate-docs"


@pytest.mark.usefixtures("generator")
def test_the_list_for_language_models_is_what_would_be_generated() -> None:
    llms = import_module("docparts.llms")
    assert llms.FILE.read_text(encoding="utf-8") == llms.llms(), "run scripts/generate-docs"


def test_every_generated_part_is_on_a_page(generator: ModuleType) -> None:
    everything = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = [name for name in generator.PARTS if f"<!-- generated: {name} -->" not in everything]
    assert missing == []


def test_a_part_nobody_knows_is_refused(generator: ModuleType) -> None:
    with pytest.raises(SystemExit, match="nonsense"):
        generator.regenerated("<!-- generated: nonsense -->\n<!-- end of generated part -->\n")


def test_a_part_without_an_end_is_refused(generator: ModuleType) -> None:
    with pytest.raises(SystemExit, match="end"):
        generator.regenerated("<!-- generated: errors -->\ntext\n")


def test_every_public_name_is_in_the_reference() -> None:
    pages = ("api", "errors", "extension-points")
    reference = "".join((ROOT / f"docs/reference/{page}.md").read_text(encoding="utf-8") for page in pages)
    missing = [
        name for name in retrysafe.__all__ if f"## `{name}`" not in reference and f"### {name}\n" not in reference
    ]
    assert missing == []
