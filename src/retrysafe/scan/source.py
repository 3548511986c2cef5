"""Finds and reads source files, whatever is in them: a file that cannot be read or parsed is reported, never raised."""

from __future__ import annotations

import ast
import fnmatch
import os
import stat
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from retrysafe.errors import ConfigurationError

MAX_BYTES = 2_000_000
"""A larger file is not parsed: it is generated, and parsing takes a hundred times its size in memory."""
MAX_DEPTH = 500
"""Nodes below one another in a syntax tree, at most."""
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})
TESTS = ("test", "tests", "testing", "conftest.py", "test_*.py", "*_test.py", "tests.py")
"""Names of files and folders that are left out unless tests are asked for."""


class SourceFile(NamedTuple):
    """A file below one of the paths. ``shown`` is how it is called in findings, with slashes."""

    path: Path
    shown: str
    root: Path


def find(paths: Sequence[str], exclude: Sequence[str] = (), *, tests: bool = False) -> Iterator[SourceFile]:
    """Python files at and below these paths, each once. Links to folders are not followed.

    Raises `ConfigurationError` for a path that does not exist.
    """
    patterns = (*exclude, *(() if tests else TESTS))
    seen: set[tuple[int, int]] = set()
    for given in paths:
        if not os.path.lexists(given):
            raise ConfigurationError(f"{given}: there is no such file or folder.")
        for path in _below(Path(given), patterns):
            try:
                found = path.stat()
            except OSError:  # a link that leads nowhere or to itself
                continue
            if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                root = path.parent if Path(given).is_file() else Path(given)
                yield SourceFile(path, path.as_posix(), root)


def _below(given: Path, patterns: Iterable[str]) -> Iterator[Path]:
    if not given.is_dir():
        yield given
        return
    for folder, folders, files in os.walk(given):
        here = Path(folder)
        left_out = {one for one in folders if one.startswith(".") or _is_excluded(here / one, one, patterns)}
        folders[:] = sorted({*folders} - left_out - SKIPPED_FOLDERS)
        for name in sorted(files):
            path = here / name
            if name.endswith(".py") and not _is_excluded(path, name, patterns):
                yield path


def _is_excluded(path: Path, name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, one) or fnmatch.fnmatch(path.as_posix(), one) for one in patterns)


def read(path: Path) -> bytes:
    """The bytes of a file. Raises `ValueError` for one that is too large, `OSError` for one that cannot be read."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
    return data


def parse(data: bytes) -> ast.Module:
    """The syntax tree of a file. Raises `ValueError` with the reason if there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the scanned code: invalid escapes and the like
            tree = ast.parse(data)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno or 1}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error
    if not _shallow(tree):
        raise ValueError("it is nested too deeply")
    return tree


def _shallow(tree: ast.AST) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return True
    return False


def comments(data: bytes) -> Iterator[tuple[int, str]]:
    """Comments with their lines; strings that look like comments are none."""
    try:
        for token in tokenize.tokenize(BytesIO(data).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, SyntaxError, RecursionError):  # the parser has the last word on what is Python
        return
