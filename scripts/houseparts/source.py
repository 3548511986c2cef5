"""Figures of the text of the source."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

from houseparts import ROOT, SOURCE, words

Function = ast.FunctionDef | ast.AsyncFunctionDef

PARTICIPLE = re.compile(
    r"a?(\w{2,}(ed|en)|begun|bound|brought|built|caught|done|drawn|felt|found|gone|heard|held|kept|known|laid|led|left|lent"
    r"|lost|made|meant|met|paid|said|sent|shown|shut|spelt|split|swept|told|torn|unheard|unread|won|withheld|withdrawn)"
)
NO_PARTICIPLE = re.compile(
    r"a?(embed|even|exceed|\w?eed|happen|listen|often|(re|blob)?open|proceed|shorten|then|token|when)"
)


def figures() -> dict[str, float]:
    """Measure everything that does not take long."""
    from tests.proving.breaks.table import all_breaks

    texts = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    modules = {_module(path): list(ast.walk(ast.parse(text))) for path, text in texts.items()}
    nodes = [node for found in modules.values() for node in found]
    functions = [node for node in nodes if isinstance(node, Function)]
    imports = {name: _imported(found, modules.keys()) for name, found in modules.items()}
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    return {
        "src.lines": sum(map(_lines, texts.values())),
        "src.files": len(texts),
        "src.class-names-used-twice": sum(count > 1 for count in classes.values()),
        "src.functions-with-imports": sum(map(_imports, functions)),
        "src.getpid": sum(text.count("getpid(") for text in texts.values()),
        "src.circles": len(circles(imports)),
        "src.question-docstrings": sum(bool(words.QUESTION.match(text)) for text in _docstrings(nodes)),
        "src.participles": len({f.name for f in functions if is_participle(f.name) and not _is_property(f)}),
        "tests.lines": sum(_lines(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*.py")),
        "tests.breaks": len(all_breaks()),
    }


def items() -> dict[str, float]:
    """Count the tests that pytest collects without services, by a run of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RETRYSAFE_")}
    environment["RETRYSAFE_SEED"] = "1"  # each seed has a few cells more or less
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if (found := re.search(r"^(\d+)(?:/\d+)? tests? collected", run.stdout, re.MULTILINE)) is None:
        raise SystemExit(f"pytest collected nothing: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return {"tests.items": int(found[1])}


def is_participle(name: str) -> bool:
    """Tell whether the first word of a function's name ends in -ed or -en, or is an irregular participle.

    Underscores before it do not count, nor does the "a" of a coroutine's name; some words only look like participles.
    """
    word = name.lstrip("_").split("_")[0]
    return bool(PARTICIPLE.fullmatch(word)) and not NO_PARTICIPLE.fullmatch(word)


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Find the circles of modules that import each other, be it in functions or for types only."""
    found: list[set[str]] = []
    reached = {name: _reached(name, imports) for name in imports}
    for name, others in reached.items():
        if name in others and not any(name in circle for circle in found):
            found.append({other for other in others if name in reached[other]})
    return found


def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    todo, seen = [start], set[str]()
    while todo:
        new = imports[todo.pop()] - seen
        seen |= new
        todo.extend(new)
    return seen


def _imported(nodes: Iterable[ast.AST], known: Set[str]) -> set[str]:
    """Name the modules of ours that some statements import."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner if inner <= known else {node.module, *inner}
    return found & known


def _imports(function: Function) -> bool:
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(function))


def _is_property(function: Function) -> bool:
    return any(re.search(r"\b(cached_)?property\b|\.setter$", ast.unparse(one)) for one in function.decorator_list)


def _docstrings(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield every text that is a statement: also those below an attribute."""
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _lines(text: str) -> int:
    return len(text.splitlines())
