"""Every mistake of the catalogue, made: the error names the fix, as the page of the documentation shows it."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.mistakes.catalogue import MISTAKES, PRELUDE, Mistake
from tests.tables import each_row

EVERY = list(chain.from_iterable(MISTAKES.values()))


def pattern(fix: str) -> str:
    return ".*".join(map(re.escape, fix.split("…")))


@each_row("mistake", [one for one in EVERY if not one.without], ids=lambda one: one.what)
def test_a_mistake(mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "shop"}
    exec(PRELUDE, names)
    with pytest.raises(Exception, match=pattern(mistake.fix)) as caught:
        exec(mistake.code, names)
    assert caught.type.__name__ == mistake.error


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [one for one in EVERY if one.without], ids=lambda one: one.what)
def test_a_missing_library(mistake: Mistake, tmp_path: Path) -> None:
    missing = dict.fromkeys(mistake.without.split())
    program = f"import sys\nsys.modules.update({missing!r})\n{PRELUDE}\n{mistake.code}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.search(rf"^[\w.]*{mistake.error}: .*{pattern(mistake.fix)}", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.slow
def test_a_module_that_is_missing_for_another_reason_is_not_blamed_on_an_extra() -> None:
    program = "import sys; sys.modules['werkzeug'] = None\nimport retrysafe.http.flask"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in done.stderr
    assert "pip install" not in done.stderr


def test_there_are_forty_at_least() -> None:
    assert len(EVERY) >= 40
