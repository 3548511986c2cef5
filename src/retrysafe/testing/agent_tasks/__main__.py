"""Ten tasks for coding agents, and their checks.

Without a FILE the tasks are printed. A FILE has a function for each task, or for some, with the name of the task; it is
crashed at each of its calls. Exit code: 0 if every function holds, 1 if one does not, 2 if there is none.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from retrysafe.errors import ConfigurationError
from retrysafe.testing.agent_tasks import SCHEMA, TASKS, TaskState, crash, running_bank

SOLUTIONS = Path(__file__).with_name("solutions.py")


def main() -> int:
    program = f"python -m {__package__}"
    parser = argparse.ArgumentParser(prog=program, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", nargs="?", help="your solutions")
    parser.add_argument("--solutions", action="store_true", help="print solutions that hold, as such a FILE")
    options = parser.parse_args()
    if options.solutions:
        print(SOLUTIONS.read_text(encoding="utf-8"), end="")
        return 0
    return _tell() if options.file is None else _check(Path(options.file))


def _tell() -> int:
    print(f"A solution is a function of a TaskState.\n\n{inspect.getdoc(TaskState)}\n{SCHEMA}")
    functions = ast.parse(SOLUTIONS.read_text(encoding="utf-8")).body
    for function in functions:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name in TASKS:
            query, answer, charges = TASKS[function.name]
            kind = "def" if isinstance(function, ast.FunctionDef) else "async def"
            print(f"{kind} {function.name}(state): {ast.get_docstring(function)}")
            print(f"    In the end {query} answers {answer}; charges: {' or '.join(map(str, charges))}\n")
    return 0


def _check(path: Path) -> int:
    module = load(path)
    found = {name: getattr(module, name) for name in TASKS if hasattr(module, name)}
    holds = True
    with tempfile.TemporaryDirectory() as scratch, running_bank(Path(scratch)) as bank:
        for name, solution in found.items():
            folder = Path(scratch, name)
            folder.mkdir()
            try:
                report = crash(solution, TASKS[name], folder, bank)
                wrong = "" if report.ok else str(report)
            except ConfigurationError as error:  # it fails without a crash, too
                wrong = error.detail
            print(f"FAILS  {name}\n{wrong}" if wrong else f"holds  {name}", flush=True)
            holds = holds and not wrong
    return 2 if not found else 0 if holds else 1


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no file of Python.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    raise SystemExit(code)
