"""The words of the code: none that the glossary has replaced, and no two public classes of one name."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import retrysafe
import retrysafe_demo

SOURCE = Path(retrysafe.__file__).parent
DEMO = Path(retrysafe_demo.__file__ or "").parent
ROOT = SOURCE.parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from docparts.glossary import TERMS  # noqa: E402 - the folder of scripts is no package

FORMER = {
    *("Occurrence", "Meaning", "Became", "Handled", "Chosen", "Received", "Stored", "Published", "Reception", "FATAL"),
    *("longest_pause", "at_once", "redelivers", "occurrence", "occurrences", "OCCURRENCES", "troubles"),
}
"""Public names of 0.1, and what was made of them in the code."""
PACKAGES = ("retrysafe", "retrysafe.messaging", "retrysafe.webhooks", "retrysafe.http.client", "retrysafe.testing")
"""The packages that users import from; each web framework beside them has the same names in a module of its own."""


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """Each module that has such a word at all, as a name or otherwise."""
    for path in sorted([*SOURCE.rglob("*.py"), *DEMO.rglob("*.py")]):
        text = path.read_text(encoding="utf-8")
        if FORMER & {*re.findall(r"\w+", text)}:
            yield path, ast.parse(text)


def names(tree: ast.Module) -> Iterator[str]:
    """Yield a module's own names: classes, functions, arguments, attributes of classes, keywords."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                yield name
            case ast.arg(name) | ast.keyword(str(name)):
                yield name
            case ast.AnnAssign(ast.Name(name)):
                yield name


def test_no_name_of_0_1_that_was_replaced_is_left() -> None:
    found = {f"{path}: {name}" for path, tree in trees() for name in names(tree) if name in FORMER}
    assert found == set()


def test_the_glossary_names_what_it_has_replaced() -> None:
    former = {name.rstrip("=") for term in TERMS for name in term.formerly}
    assert former >= {"Reception", "Became", "letters", "forget"}
    assert len({term.name for term in TERMS}) == len(TERMS)


def test_no_two_public_names_are_alike() -> None:
    homes: dict[str, set[Any]] = defaultdict(set)
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            homes[name].add(getattr(module, name))
    assert {name for name, found in homes.items() if len(found) > 1} == set()


def test_every_file_and_name_of_the_architecture_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    told = re.sub(r"<!-- generated: files.*?## Add|## Generated.*", "", page, flags=re.DOTALL)
    defined = {path.relative_to(SOURCE).as_posix(): {*_defined(path)} for path in SOURCE.rglob("*.py")}
    missing = {file for file in re.findall(r"(?<![\w/.*])[\w/]+\.py\b", told) if not _leads(file, defined)}
    for file, names in re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", told):
        missing |= {f"{file}: {name}" for name in re.findall(r"[\w.]+", names) if name not in defined[file]}
    everywhere = set().union(*defined.values())
    missing |= {*re.findall(r"\b[A-Z][a-z]\w+\.[a-z_]\w+", told), *re.findall(r"`([A-Z][a-z]\w+)`", told)} - everywhere
    assert missing == set()


def _leads(file: str, defined: dict[str, set[str]]) -> bool:
    return any(known == file or known.endswith(f"/{file}") for known in defined) or (ROOT / file).is_file()


def _defined(path: Path) -> Iterator[str]:
    """Yield the functions, classes and variables of a module, and the members of classes also as `Class.member`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name, body=body):
                yield name
                for one in body:
                    if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{name}.{one.name}"
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.Name(name, ast.Store()):
                yield name
