"""The rooms of the source and of our laboratory, and what each file holds, as its docstring says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import retrysafe

SOURCE = Path(retrysafe.__file__).parent
LABORATORY = Path(__file__).parents[2] / "tests" / "laboratory"


def files() -> str:
    """A table per room: the file, and the first sentence of its docstring."""
    parts = [_table("retrysafe", sorted(SOURCE.glob("*.py")), SOURCE)]
    parts += [_table(room.name, sorted(room.rglob("*.py")), SOURCE) for room in sorted(_rooms())]
    parts.append(_table("tests/laboratory", sorted(LABORATORY.rglob("*.py")), LABORATORY))
    return "\n\n".join(parts)


def _rooms() -> Iterator[Path]:
    return (path for path in SOURCE.iterdir() if path.joinpath("__init__.py").is_file())


def _table(name: str, paths: list[Path], root: Path) -> str:
    rows = [f"### `{name}`", "", "| file | holds |", "| --- | --- |"]
    for path in paths:
        told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = told.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|").replace("``", "`")
        if path.parent.name != "migrations" and first:
            rows.append(f"| `{path.relative_to(root)}` | {first} |")
    return "\n".join(rows)
