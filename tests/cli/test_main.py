"""The command line around its verbs, and `retrysafe migrate`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

import retrysafe
from retrysafe import Boundary, cli
from retrysafe.backends import migrations
from retrysafe.cli import main
from tests.tables import each_row


@pytest.mark.slow
def test_python_m_retrysafe_is_the_command_line() -> None:
    command = [sys.executable, "-m", "retrysafe", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"retrysafe {retrysafe.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["unheard-of"], ["demo", "--seed", "one"], ["keys"], ["describe"]])
def test_a_misspelt_command_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: retrysafe" in capsys.readouterr().err


@each_row(
    ("arguments", "meant"),
    [
        (["swep"], "; did you mean sweep?"),
        (["keys", "lst"], "; did you mean list?"),
        (["sweep", "--bacth=3"], "; did you mean --batch?"),
        (["relay", "--hold", "transction"], "; did you mean transaction?"),
        (["sweep", "--nothing-like-it"], ""),
    ],
)
def test_a_misspelt_word_is_answered_with_the_one_that_was_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr().err.rstrip()
    assert said.endswith(meant)
    assert ("did you mean" in said) is bool(meant)


COMPLETE = """
source /dev/stdin
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
$(complete -p retrysafe | sed 's/.*-F \\([^ ]*\\).*/\\1/') retrysafe "${!#}"
echo "${COMPREPLY[@]}"
"""


@pytest.mark.slow
def test_bash_completes_verbs_options_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef retrysafe")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for words, found in (("keys l", "list"), ("sweep --ba", "--batch"), ("relay --hold t", "transaction")):
        command = ["bash", "-c", COMPLETE, "bash", "retrysafe", *words.split()]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [found], done.stderr


def test_the_store_to_migrate_is_an_option_or_in_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETRYSAFE_STORE", raising=False)
    assert main(["migrate"]) == 2
    assert "--store is missing" in capsys.readouterr().err
    monkeypatch.setenv("RETRYSAFE_STORE", f"sqlite:///{tmp_path / 'store.db'}")
    assert main(["migrate"]) == 0
    assert capsys.readouterr().out.startswith("applied 0001")


@each_row("verb", cli.VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert f"retrysafe {verb}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("before", [(), ("--help",)])
def test_a_command_imports_no_verb_but_its_own(before: tuple[str, ...]) -> None:
    imported = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr, sep='\\n'))"
    command = [sys.executable, "-c", f"{imported}; from retrysafe.cli import main; main()", *before, "sweep", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {name for name in cli.VERBS if f"retrysafe.cli.{name}" in done.stderr.split()}
    assert found == {"sweep"}


def test_without_a_verb_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out.split()
    assert set(cli.VERBS) <= set(listed)


@each_row("dialect", ["sqlite", "postgresql"])
def test_sql_is_printed_without_connecting(dialect: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--store", f"{dialect}://nobody@nowhere.invalid/x", "--sql"]) == 0
    assert capsys.readouterr().out == migrations.script(dialect)
    latest = migrations.load(dialect)[-1].version
    assert main(["migrate", "--store", f"{dialect}://nobody@nowhere.invalid/x", "--sql", "--after", str(latest)]) == 0
    assert "CREATE TABLE" not in capsys.readouterr().out


def test_a_sqlite_file_is_ready_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    assert main(["migrate", "--store", url]) == 0
    assert main(["migrate", "--store", url]) == 0
    assert capsys.readouterr().out.endswith("up to date\n")


@pytest.fixture
def empty_database(postgresql: str) -> Iterator[str]:
    import psycopg

    name = f"retrysafe_cli_{uuid4().hex}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield urlsplit(postgresql)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
def test_a_postgresql_database_is_migrated_once(
    scheme: str, empty_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = empty_database.replace("postgresql", scheme, 1)
    assert main(["migrate", "--store", url]) == 0
    applied = "".join(f"applied {m.version:04d} {m.name}\n" for m in migrations.load("postgresql"))
    assert capsys.readouterr().out == applied
    assert main(["migrate", "--store", url]) == 0
    assert capsys.readouterr().out == "up to date\n"
    boundary = Boundary("after the migration", store=empty_database)
    with boundary.claim("key") as claim:
        claim.result = 1
    boundary.close()


@each_row(
    ("arguments", "complaint"),
    [
        (["--store", "nonsense://x"], "unknown kind of URL"),
        (["--store", "redis://x", "--sql"], "has no SQL schema"),
        (["--store", "redis://u:s3#cret@x", "--sql"], "'redis://u:***@x' has no SQL schema"),
        (["--store", "sqlite:///x.db", "--after", "1"], "--after goes with --sql only"),
        (["--store", "sqlite:///x.db", "--partitions", "4"], "--partitions is for PostgreSQL"),
        (["--store", "postgresql://x", "--sql", "--partitions", "3"], "power of two"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert complaint in said.err
    assert said.err.count("\n") == 1


def test_partitions_are_in_the_sql_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--store", "postgresql://nobody@nowhere.invalid/x", "--sql", "--partitions", "4"]) == 0
    said = capsys.readouterr().out
    assert said.count("PARTITION BY HASH (key_hash)") == 1
    assert said.count("PARTITION OF retrysafe_records") == 4


FIRST = """
import os, signal, sys
os.getpid = lambda: 1
from retrysafe.cli import main
main(["status", "--store", "memory://"])
from retrysafe.cli.stopping import end_by_signals
heard = []
with end_by_signals(lambda: heard.append(1), str):
    signal.raise_signal(signal.SIGTERM)
print(heard, flush=True)
signal.raise_signal(signal.SIGTERM)
print("goes on", flush=True)
"""


@pytest.mark.slow
def test_sigterm_ends_the_first_process_of_a_container_before_it_waits_for_one() -> None:
    """The kernel hands such a process no signal that it does not handle."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + 15, done.stderr
    assert done.stdout.endswith("[1]\n")


@pytest.mark.slow
def test_output_on_a_closed_stderr_does_not_go_to_stdout() -> None:
    command = [sys.executable, "-m", "retrysafe", "status", "--store", "nonsense://x"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
