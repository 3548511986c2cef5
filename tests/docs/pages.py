"""The pages of the documentation, and how their examples are run.

- ```` ```python ````: run in the page's own namespace; with ``>>>`` it is a doctest.
- ```` ```python ```` that begins with ``# name.py`` or ``# folder/name.py``: written to that file.
- ```` ```console ````: lines after ``$`` are run by bash, and what they print is compared. What they leave running is
  killed when the block ends. ``localhost:8000`` stands for a port that is free; uvicorn is told of it.
- ```` ```sh ````: only shown, for what a test cannot do (installing a package).
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sybil import Document, Example, Region
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECONDS = 60
_EXPORT = re.compile(r"^export (\w+)=(\S+)$", re.MULTILINE)
_FILE = re.compile(r"# ([\w/]+\.py)\n")


def touched() -> set[Path]:
    """The pages that this change has touched: what differs from the main branch, or from ten commits ago on it."""
    git = ["git", "-C", str(ROOT)]
    for base in ("origin/main...", "HEAD~10"):
        found = subprocess.run([*git, "diff", "--name-only", base], capture_output=True, text=True, check=False)
        if found.stdout:
            return {ROOT / name for name in found.stdout.splitlines()}
    return set()


def parse(page: Path) -> Document:
    """The page with all its examples."""
    return Document.parse(str(page), python, CodeBlockParser("console", evaluate_console))


def python(document: Document) -> Iterable[Region]:
    """Python blocks, those that are files apart from those that are run."""
    for region in PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS)(document):
        if isinstance(region.parsed, str) and _FILE.match(region.parsed):
            region.evaluator = write_file
        yield region


def hidden(document: Document) -> list[Region]:
    """The blocks that run and are not shown."""
    return [region for _, region in document.regions if document.text.startswith("<!---", region.start)]


def write_file(example: Example) -> None:
    """Write the block to the file that its first line names, in the working directory."""
    match = _FILE.match(example.parsed)
    assert match is not None
    Path(match[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(match[1]).write_text(example.parsed, encoding="utf-8")


def evaluate_console(example: Example) -> str | None:
    """Run the commands of a console block in one shell; return how its output differs from what is shown."""
    lines = example.parsed.splitlines()
    commands = "\n".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    os.environ.update(_EXPORT.findall(commands))  # for the rest of the page, as in a reader's shell
    shown = "".join(f"{line}\n" for line in lines if not line.startswith("$ "))
    address = f"localhost:{os.environ['UVICORN_PORT']}"
    printed = run(commands.replace("localhost:8000", address)).replace(address, "localhost:8000")
    if doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS):
        return None
    return f"{commands}\nshould print\n{shown}\nbut printed\n{printed}"


def run(commands: str) -> str:
    """Return the output of the commands; then end the processes that they have left running."""
    with tempfile.TemporaryFile("w+") as output:
        bash = subprocess.Popen(
            ["bash", "-c", commands], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            bash.wait(SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(bash.pid, signal.SIGKILL)
            bash.wait()
        output.seek(0)
        return output.read()


def write_commands(folder: Path) -> None:
    """Put `python`, `retrysafe` and `uvicorn` into ``folder``: of this interpreter."""
    for name, arguments in (("python", ""), ("retrysafe", "-m retrysafe"), ("uvicorn", "-m uvicorn")):
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        command.chmod(0o755)
