"""Source that is broken, huge or made to hurt: it is reported, and the other files are scanned all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retrysafe.errors import ConfigurationError
from retrysafe.scan import source
from retrysafe.scan.rules.catalogue import RULES
from retrysafe.scan.scanner import scan
from tests.tables import each_row

WRONG = RULES[0].wrong

HOSTILE = {
    "syntax error": b"def f(:\n",
    "Python 2": b"print 'x'\n",
    "null bytes": b"x = 1\0\n",
    "not in its encoding": b"x = '\xff\xfe'\n",
    "unknown encoding": b"# -*- coding: nonsense -*-\nx = 1\n",
    "encoding that is no text": b"# -*- coding: base64 -*-\nx = 1\n",
    "nested parentheses": b"(" * 10_000 + b")" * 10_000,
    "nested calls": b"f(" * 190 + b")" * 190 + b"\n" + b"x = " + b"not " * 5000 + b"1\n",
    "nested attributes": b"x = a" + b".b" * 20_000 + b"\n",
    "nested sums": b"x = " + b"1 + " * 20_000 + b"1\n",
    "a number of a million digits": b"x = " + b"9" * 1_000_000 + b"\n",
    "too large": b"x = 1\n" * 400_000,
}


@each_row("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_reported_and_the_others_are_scanned(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(data)
    (tmp_path / "b.py").write_text(WRONG, encoding="utf-8")
    found = {Path(one.shown).name: one for one in scan([str(tmp_path)]).findings}
    assert found["a.py"].rule.id == "RS001"
    assert found["b.py"].rule.id == "RS101"


HARMLESS = {
    "names that define each other": b"a = b\nb = a\nclass C(D): ...\nclass D(C): ...\nx = x or x or x\nC().y.z()\n",
    "doubling": b"".join(b"x%d = x%d or x%d or x%d\n" % (n + 1, n, n, n) for n in range(300)) + b"x300.post()\n",
    "functions that call each other": b"def f(): return g()\ndef g(): return f()\nf().x()\n",
    "an import of itself": b"from a import *\nfrom a import z\nfrom . import a\nz.post()\n",
    "annotations in annotations": b"A = 'B'\nB = 'A'\ndef f(x: 'A', y: \"'\\\"A\\\"'\") -> 'f': x.post()\n",
    "imports above the root": b"from ..... import x\nfrom ...y import z\nz.post()\n",
    "Latin-1": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "a byte order mark": b"\xef\xbb\xbfx = 1\n",
    "nothing": b"",
    "surrogates": b"x = '\\ud800'\nclass A:\n    def f(self): self.x = self.x\n",
}


@each_row("data", HARMLESS.values(), ids=HARMLESS.keys())
def test_strange_source_is_read(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(data)
    assert scan([str(tmp_path)]).findings == []


def test_links_pipes_and_folders_lead_nowhere_twice(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(WRONG, encoding="utf-8")
    (tmp_path / "again.py").symlink_to("a.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    done = scan([str(tmp_path), str(tmp_path / "a.py")])
    assert [one.shown for one in done.findings] == [(tmp_path / "a.py").as_posix()]
    assert done.files == 1


def test_the_scanned_code_is_never_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    code = f"import pathlib\npathlib.Path({str(touched)!r}).touch()\n"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(code, encoding="utf-8")
    (tmp_path / "package" / "urls.py").write_text(f"{code}from package import *\nx.post()\n", encoding="utf-8")
    scan([str(tmp_path)])
    assert not touched.exists()


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        scan([str(tmp_path / "nothing")])


def test_tests_and_foreign_folders_are_left_out(tmp_path: Path) -> None:
    for folder in (".venv", "node_modules", "tests", "mine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("x = 1\n", encoding="utf-8")
    assert [one.path.parent.name for one in source.find([str(tmp_path)])] == ["mine"]
    assert {one.path.parent.name for one in source.find([str(tmp_path)], tests=True)} == {"mine", "tests"}
    assert list(source.find([str(tmp_path)], ["mi*"])) == []
