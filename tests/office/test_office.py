"""Django's staff operate keys: in the admin, on every database, and with `manage.py retrysafe`."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from shutil import copytree

import pytest

from tests.conftest import require
from tests.faults.helpers import ROOT, environment

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.office.settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
UNKNOWN = """
from retrysafe import Boundary
transfers = Boundary("transfers", store="default", effects="external", observers=())
try:
    with transfers.claim("T-1", operation="transfer", scope="tenant"):
        raise TimeoutError
except TimeoutError:
    pass
transfers.close()
"""


def run(folder: Path, kind: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the project."""
    given = {"DJANGO_TEST_ENGINE": kind, "DJANGO_TEST_FOLDER": str(folder), "RETRYSAFE_STORE": "", **variables}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=450,
        check=False,
        env=environment() | given,
        cwd=ROOT,
    )


def manage(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the project, on SQLite."""
    script = folder / "manage.py"
    script.write_text(SCRIPT)
    return run(folder, "sqlite", str(script), *arguments, **variables)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one unknown key, which tests take copies of."""
    folder = tmp_path_factory.mktemp("project")
    for command in (("migrate", "--verbosity", "0"), ("shell", "-c", UNKNOWN)):
        done = manage(folder, *command)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    return Path(copytree(made, tmp_path, dirs_exist_ok=True))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_staff_operate_keys_in_the_admin(kind: str, tmp_path: Path) -> None:
    if kind != "sqlite":
        require(kind)
    settings = {"DJANGO_SETTINGS_MODULE": "tests.office.settings"}
    done = run(tmp_path, kind, "-m", "django", "test", "tests.office", "--noinput", **settings)
    assert done.returncode == 0, done.stderr
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran is not None
    assert int(ran[1]) > 12


@pytest.mark.one_of("commands of Django's office", of=2)
def test_every_command_works_on_the_settings_store(project: Path) -> None:
    status = manage(project, "retrysafe", "status", "--json")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["unknown"] == 1
    shown = manage(project, "retrysafe", "keys", "show", "T-1")
    assert shown.returncode == 0, shown.stderr
    command = re.search(r"^  (.* keys release --hash .*)$", shown.stdout, re.MULTILINE)
    assert command is not None
    assert command[1].startswith(f"python {project / 'manage.py'} retrysafe keys release --hash ")
    words = command[1].removeprefix("python ").replace("WHY", "seen").split()
    released = run(project, "sqlite", *words, "--yes")
    assert released.returncode == 0, released.stderr
    assert released.stdout.startswith("resolved: unknown → released\n")
    for verb in ("outbox status", "inbox status", "sweep", "migrate", "keys list"):
        done = manage(project, "retrysafe", *verb.split())
        assert done.returncode == 0, (verb, done.stderr)


@pytest.mark.one_of("commands of Django's office", of=2)
def test_the_doctor_examines_the_project_and_its_store(project: Path) -> None:
    done = manage(project, "retrysafe", "doctor", "--json", "--fail-on", "error")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    ids = [one["id"] for one in found]
    assert "application-route" in ids, found
    assert ids.count("store-unknown") == 1, found
    unknown = found[ids.index("store-unknown")]["fix"]
    assert unknown.startswith("python manage.py retrysafe keys list --state unknown --store default  and"), unknown
    route = found[ids.index("application-route")]["evidence"]
    assert route == "Nothing guards POST /pay.", "the redirects of Django's admin do nothing that could be repeated"
    database = next(project.glob("*.db*"))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP INDEX retrysafe_records_tombstone")
        connection.commit()
    broken = manage(project, "retrysafe", "doctor")
    assert (broken.returncode, "sqlite-indexes" in broken.stdout) == (1, True), broken.stderr


@pytest.mark.one_of("commands of Django's office", of=2)
def test_the_doctor_finds_settings_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "shop_settings.py").write_text('SECRET_KEY, INSTALLED_APPS, ROOT_URLCONF = "s", [], "shop_urls"')
    (tmp_path / "shop_urls.py").write_text("urlpatterns = []")
    program = "import sys; from retrysafe.cli import main; sys.exit(main())"  # -P: as the installed command begins

    def doctor(settings: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", program, "doctor", "--settings", settings]
        return subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False
        )

    assert "application-boundaries  shop_settings" in doctor("shop_settings").stdout
    wrong = doctor("absent_settings")
    assert (wrong.returncode, "'absent_settings'" in wrong.stderr) == (2, True), wrong.stderr


@pytest.mark.one_of("commands of Django's office", of=2)
def test_options_of_djangos_are_heeded_and_exit_codes_kept(project: Path) -> None:
    settings = ("--settings", "tests.office.settings", f"--pythonpath={project}")
    done = run(project, "sqlite", "-m", "django", "retrysafe", "keys", "list", "--count", *settings)
    assert (done.returncode, done.stdout) == (0, "1 key\n"), done.stderr
    gone = manage(project, "retrysafe", "keys", "show", "nothing")
    assert gone.returncode == 1
    wrong = manage(project, "retrysafe", "keys", "list", "--older-than", "soon")
    assert wrong.returncode == 2
    helped = manage(project, "help", "retrysafe")
    assert "keys" in helped.stdout
    assert "manage.py retrysafe" in helped.stdout


@pytest.mark.one_of("commands of Django's office", of=2)
def test_it_can_be_called_from_code(project: Path) -> None:
    called = (
        "import io; from django.core.management import call_command, CommandError; out = io.StringIO()\n"
        "call_command('retrysafe', 'keys', 'list', '--json', stdout=out)\n"
        'assert \'"effective_state": "unknown"\' in out.getvalue(), out.getvalue()\n'
        "try: call_command('retrysafe', 'keys', 'show', 'nothing', stderr=out)\n"
        "except CommandError as error: assert error.returncode == 1; print('as it should')\n"
    )
    done = manage(project, "shell", "-c", called)
    assert "as it should" in done.stdout, done.stderr


@pytest.mark.one_of("commands of Django's office", of=2)
def test_boundaries_are_described_under_django(tmp_path: Path) -> None:
    managed = manage(tmp_path, "retrysafe", "describe", "tests.office.bank")
    assert managed.returncode == 0, managed.stderr
    assert "Django alias 'default'" in managed.stdout
    assert "transfer" in managed.stdout
    settings = {"DJANGO_SETTINGS_MODULE": "tests.office.settings"}
    plain = run(tmp_path, "sqlite", "-m", "retrysafe", "describe", "tests.office.bank", **settings)
    assert (plain.returncode, plain.stdout) == (0, managed.stdout), plain.stderr
    without = run(tmp_path, "sqlite", "-m", "retrysafe", "describe", "tests.office.bank", DJANGO_SETTINGS_MODULE="")
    assert without.returncode == 2
    assert "Set DJANGO_SETTINGS_MODULE, or use python manage.py retrysafe." in without.stderr
    wrong = run(tmp_path, "sqlite", "-m", "retrysafe", "describe", "tests.office.bank", DJANGO_SETTINGS_MODULE="gone")
    assert wrong.returncode == 2
    assert "DJANGO_SETTINGS_MODULE is 'gone', and Django could not be set up with it" in wrong.stderr
