"""The tools for users' tests: the names of `retrysafe.testing`, and the fixtures of the pytest plugin."""

from __future__ import annotations

import ast
from pathlib import Path

from docparts.markdown import paragraphs, table
from docparts.reference import reference
from retrysafe import testing

PLUGIN = Path(__file__).parents[2] / "src/_retrysafe_pytest.py"


def names() -> str:
    """Every public name."""
    return "\n".join(reference(name, getattr(testing, name)) for name in testing.__all__)


def fixtures() -> str:
    """One row per fixture. The plugin is read, not imported: that is for pytest to do, before all else."""
    functions = [one for one in ast.parse(PLUGIN.read_text(encoding="utf-8")).body if isinstance(one, ast.FunctionDef)]
    found = [one for one in functions if any("fixture" in ast.unparse(mark) for mark in one.decorator_list)]
    return table(("fixture", "what it is"), ((f"`{one.name}`", paragraphs(ast.get_docstring(one))[0]) for one in found))
