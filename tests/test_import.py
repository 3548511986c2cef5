"""`import retrysafe` needs the standard library alone, and little of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import retrysafe

SOURCE = Path(retrysafe.__file__).parent.parent

HEAVY = {
    "asyncio": "sync programs have no use for it; async ones have loaded it already",
    "concurrent.futures": "the same",
    "ssl": "the clients of the stores bring it",
    "socket": "the same",
    "http": "no HTTP before an integration is chosen",
    "email": "importlib.metadata would bring it",
    "importlib.metadata": "the version is written down",
    "importlib.resources": "migrations are read when a schema is checked",
    "tempfile": "importlib.resources would bring it",
    "zipfile": "the same",
    "shutil": "the same",
    "pathlib": "the same",
    "sqlite3": "only a SQLite store needs it",
    "opentelemetry": "only retrysafe.observability.otel needs it",
    "logging": "only what logs needs it",
    "pickle": "nothing is ever unpickled",
    "subprocess": "nothing needs it",
    "multiprocessing": "nothing needs it",
    "unittest": "nothing needs it",
    "argparse": "the command line needs it",
}

PROBE = """
import sys
sys.path.append({source!r})
before = set(sys.modules)
import retrysafe
print(*sorted(set(sys.modules) - before), sep="\\n")
"""


def loaded() -> set[str]:
    """What a bare interpreter loads for `import retrysafe`: no site-packages, no environment."""
    command = (sys.executable, "-I", "-S", "-c", PROBE.format(source=str(SOURCE)))
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_imports_nothing_but_the_standard_library() -> None:
    roots = {name.partition(".")[0] for name in loaded()}
    assert roots - set(sys.stdlib_module_names) == {"retrysafe"}


def test_imports_nothing_heavy() -> None:
    assert {name: HEAVY[name] for name in sorted(loaded() & HEAVY.keys())} == {}


def test_imports_no_concrete_store_or_executor() -> None:
    parts = (
        "retrysafe.backends.sql.",
        "retrysafe.backends.redis.",
        "retrysafe.backends.dynamodb.",
        "retrysafe.cli",
        "retrysafe_demo",
        "retrysafe.testing",
    )
    assert [name for name in sorted(loaded()) if name.startswith(parts)] == []
