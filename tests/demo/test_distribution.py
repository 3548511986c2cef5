"""The demo is a distribution of its own, which fits the retrysafe of the same checkout and no other."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import retrysafe

ROOT = Path(__file__).parents[2]


def project(folder: Path) -> dict[str, Any]:
    """Read the metadata of a distribution."""
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def test_both_distributions_have_one_version_and_name_each_other() -> None:
    library, demo = project(ROOT), project(ROOT / "demo")
    assert library["version"] == demo["version"] == retrysafe.__version__
    assert demo["dependencies"] == [f"retrysafe=={demo['version']}"]
    assert f"retrysafe-demo=={demo['version']}" in library["optional-dependencies"]["demo"]


def test_the_demo_has_the_licence_as_a_file_of_its_own() -> None:
    """A link would lead out of its sdist, which pip refuses."""
    assert not (ROOT / "demo" / "LICENSE").is_symlink()
    assert (ROOT / "demo" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_library_imports_without_the_demo() -> None:
    """The command line alone loads the demo, by name and when it is asked for."""
    importing = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "src").rglob("*.py"))
        if "retrysafe_demo" in path.read_text(encoding="utf-8")
    ]
    assert importing == ["src/retrysafe/cli/demo.py"]
