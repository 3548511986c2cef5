"""Command lines that are shown: what a shell makes of them, and what they never contain."""

from __future__ import annotations

import subprocess

import pytest

from retrysafe.backends.commands import Commands, naming, of_alias, quoted
from tests.tables import each_row

HOSTILE = (
    "plain",
    "",
    "two words",
    "it's",
    '$(touch owned) `id` ${HOME} !! ; & | < > * ? ~ # \\ "',
    "line\nanother\r\ttab",
    "\x1b]0;owned\x07\x7f",
    "\u202egnp.exe\u2028next",
    "käse 🧀",
    "-rf",
    "'\n'; id #",
    "\\x41\n",
    "x" * 5000,
)


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_a_shell_reads_back_what_was_quoted(text: str) -> None:
    word = quoted(text)
    assert word.isprintable(), "one line, and nothing that speaks to a terminal"
    command = Commands().line("keys list", [("scope", text)] if text else [], text)
    script = f"retrysafe() {{ printf '%s\\0' \"$@\"; }}; {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    read = done.stdout.decode().split("\0")[:-1]
    assert read[-1] == text
    if text:
        assert read[2:-1][:2] in ([f"--scope={text}", "--"], ["--scope", text])


@each_row(
    "address",
    [
        "postgresql://user:***@host/db",
        "postgresql://user:secret@host/db",
        "redis://:secret@host:6379/0",
        "postgresql://user@host/db?password=secret",
        "host=db dbname=shop password=secret",
        "postgresql://…",
        "mysql+pymysql://user:***@host/db",
        "rediss://user:se@cr:et@host",
    ],
)
def test_a_password_or_no_url_is_named_by_the_variable(address: str) -> None:
    line = naming(address).line("migrate")
    assert line == 'retrysafe migrate --store "$RETRYSAFE_STORE"'


def test_known_corrections_are_told() -> None:
    assert naming("postgresql://me@host/db").line("status") == "retrysafe status --store postgresql://me@host/db"
    assert naming("sqlite:////a b.db").line("status") == "retrysafe status --store 'sqlite:////a b.db'"
    assert of_alias("default").line("status") == "python manage.py retrysafe status --store default"
