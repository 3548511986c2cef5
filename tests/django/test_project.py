"""A Django project's own tests pass under Django's runner, on every database and with real teardown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require
from tests.faults.helpers import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.one_of("commands of a Django project", of=2)]


def manage(folder: Path, kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the project."""
    variables = {
        "DJANGO_SETTINGS_MODULE": "tests.django.settings",
        "DJANGO_TEST_ENGINE": kind,
        "DJANGO_TEST_FOLDER": str(folder),
    }
    command = [sys.executable, "-W", "error", "-m", "django", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment() | variables,
        cwd=ROOT,
    )


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql", "mysql"])
def test_projects_tests_pass(kind: str, tmp_path: Path) -> None:
    if kind in ("postgresql", "mysql"):
        require(kind)
    done = manage(tmp_path, kind, "test", "tests.django", "--noinput")
    assert done.returncode == 0, done.stderr
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran is not None
    assert int(ran[1]) > 20
    assert "Destroying test database" in done.stderr


def test_makemigrations_finds_nothing_to_do(tmp_path: Path) -> None:
    done = manage(tmp_path, "sqlite", "makemigrations", "--check", "--dry-run")
    assert (done.returncode, done.stdout) == (0, "No changes detected\n"), done.stderr


def test_the_system_check_names_the_command_until_it_has_run(tmp_path: Path) -> None:
    check = ("check", "--database", "default", "--fail-level", "WARNING")
    before = manage(tmp_path, "sqlite", *check)
    assert before.returncode == 1
    assert "(retrysafe.W001)" in before.stderr
    assert "python manage.py migrate retrysafe --database=default" in before.stderr
    migrated = manage(tmp_path, "sqlite", "migrate", "--no-color")
    assert (migrated.returncode, "retrysafe.W" in migrated.stderr) == (0, False), migrated.stderr
    after = manage(tmp_path, "sqlite", *check)
    assert after.returncode == 0, after.stderr


def test_migrate_there_and_back(tmp_path: Path) -> None:
    for arguments in (["retrysafe"], ["retrysafe", "zero"], []):
        done = manage(tmp_path, "sqlite", "migrate", "--no-color", *arguments)
        assert done.returncode == 0, done.stderr
    assert "Applying retrysafe.0001_records... OK" in done.stdout
    assert "Applying retrysafe.0002_quotas... OK" in done.stdout


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_sqlmigrate_shows_our_sql(kind: str, tmp_path: Path) -> None:
    if kind != "sqlite":
        require(kind)
    done = manage(tmp_path, kind, "sqlmigrate", "retrysafe", "0001")
    assert done.returncode == 0, done.stderr
    assert "retrysafe_records (" in done.stdout
    assert "INSERT INTO retrysafe_schema (version, name) VALUES (1, 'records');" in done.stdout
    assert ("xact xid8" in done.stdout) == (kind == "postgresql")


def test_parallel_test_processes(tmp_path: Path) -> None:
    require("postgresql")
    done = manage(tmp_path, "postgresql", "test", "tests.django", "--noinput", "--parallel", "2")
    assert done.returncode == 0, done.stderr
