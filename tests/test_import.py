"""`import retrysafe` loads nothing, and a boundary little of the standard library."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import retrysafe
from retrysafe.backends.registry import BACKENDS
from tests.tables import each_row

SOURCE = Path(retrysafe.__file__).parent.parent

HEAVY = {
    "asyncio": "sync programs have no use for it; async ones have loaded it already",
    "concurrent.futures": "the same",
    "ssl": "the clients of the stores bring it",
    "socket": "the same",
    "http": "no HTTP before an integration is chosen",
    "email": "importlib.metadata would bring it",
    "importlib.metadata": "the version is written down",
    "importlib.resources": "only the console has files to read",
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
    "inspect": "what it tells of a function is in its code object",
    "dataclasses": "it brings inspect; only who is given one needs it",
    "uuid": "only who is given one needs it; it brings platform",
    "platform": "nothing needs it",
    "decimal": "only who is given one needs it",
    "urllib.parse": "only URLs of servers and files are taken apart; it brings ipaddress",
    "ipaddress": "nothing needs it",
    "random": "only what is tried again needs it",
    "base64": "binascii does that",
}

OF_FEATURES = {
    "retrysafe.backends.cache": "layered()",
    "retrysafe.backends.joining": "tx=",
    "retrysafe.backends.migrations": "stores that have a schema",
    "retrysafe.backends.schema": "the same",
    "retrysafe.claims.batch": "many claims at once",
    "retrysafe.claims.declaration": "@declare and sentence=",
    "retrysafe.claims.encryption": "encryption=",
    "retrysafe.claims.pydantic_models": "results that are models",
    "retrysafe.protocol.caching": "layered()",
    "retrysafe.protocol.migrating": "stores that have a schema",
    "retrysafe.protocol.quotas": "quota=",
}
"""Modules that a program loads which uses the feature."""

PROBE = """
import sys
sys.path.append({source!r})
before = set(sys.modules)
{imported}
print(*sorted(set(sys.modules) - before), sep="\\n")
"""


def loaded(imported: str = "from retrysafe import *") -> set[str]:
    """Return the modules that a bare interpreter loads for an import: no site-packages, no environment."""
    command = (sys.executable, "-I", "-S", "-c", PROBE.format(source=str(SOURCE), imported=imported))
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.slow
def test_imports_nothing_until_a_name_is_asked_for() -> None:
    found = loaded("import retrysafe")
    assert {name for name in found if name.startswith("retrysafe.")} == set()
    assert "typing" not in found


@pytest.mark.slow
@each_row(
    "imported",
    [
        "from retrysafe import *",
        "from retrysafe.testing import Clock, assert_once",
        "from retrysafe.cli import make_parser; make_parser('retrysafe')",
    ],
)
def test_imports_nothing_but_the_standard_library(imported: str) -> None:
    roots = {name.partition(".")[0] for name in loaded(imported)}
    assert roots - set(sys.stdlib_module_names) == {"retrysafe"}


@pytest.mark.slow
def test_imports_nothing_heavy() -> None:
    assert {name: HEAVY[name] for name in sorted(loaded() & HEAVY.keys())} == {}


@pytest.mark.slow
def test_imports_no_feature_that_nobody_uses() -> None:
    found = loaded("import retrysafe; retrysafe.Boundary")
    assert {name: OF_FEATURES[name] for name in sorted(found & OF_FEATURES.keys())} == {}


@pytest.mark.slow
def test_imports_no_concrete_store_or_executor() -> None:
    parts = (
        *(f"retrysafe.backends.{name}." for name in BACKENDS if name != "memory"),
        "retrysafe.cli",
        "retrysafe_demo",
        "retrysafe.testing",
    )
    assert [name for name in sorted(loaded()) if name.startswith(parts)] == []


def test_has_the_names_that_type_checkers_see() -> None:
    parsed = ast.parse(Path(retrysafe.__file__).read_text())
    (block,) = (node for node in parsed.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == {
        name: f"retrysafe.{home}" for name, home in retrysafe._HOMES.items()
    }
    assert sorted(retrysafe._HOMES) == sorted(retrysafe.__all__)


def test_has_its_names_as_any_package() -> None:
    namespace: dict[str, object] = {}
    exec("from retrysafe import *", namespace)
    assert set(retrysafe.__all__) <= namespace.keys()
    assert {*retrysafe.__all__, "__version__", "__doc__"} <= set(dir(retrysafe))
    assert all(getattr(retrysafe, name) is namespace[name] for name in retrysafe.__all__)


def test_knows_no_other_name() -> None:
    name = "Bound"
    with pytest.raises(AttributeError, match="module 'retrysafe' has no attribute 'Bound'"):
        getattr(retrysafe, name)


@each_row("name", ["Boundary", "StoredResult", "KeyReused"])
def test_its_classes_are_pickled_by_where_they_are_defined(name: str) -> None:
    kind = getattr(retrysafe, name)
    assert pickle.loads(pickle.dumps(kind)) is kind
