"""The rooms of the source, the demo and our laboratory, and what each file holds, as its docstring says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import retrysafe

SOURCE = Path(retrysafe.__file__).parent
ROOT = Path(__file__).parents[2]
BESIDE = ("demo/retrysafe_demo", "tests/laboratory")


def files() -> str:
    """A table per room: the file, and the first sentence of its docstring."""
    parts = [_table("retrysafe", sorted(SOURCE.glob("*.py")), SOURCE)]
    parts += [_table(room.name, sorted(room.rglob("*.py")), SOURCE) for room in sorted(_rooms())]
    parts += [_table(room, sorted((ROOT / room).rglob("*.py")), ROOT / room) for room in BESIDE]
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
