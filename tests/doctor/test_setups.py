"""The doctor on real servers: a broken set-up is found by its check alone, and of a sound one nothing is found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from retrysafe.cli import main
from retrysafe.doctor import diagnose, registry
from retrysafe.doctor.stores import examine
from retrysafe.protocol.checks import Severity
from retrysafe.protocol.records import Finding
from tests.doctor.setups import BROKEN, SOUND, UNMADE, postgresql, redis
from tests.doctor.setups.form import Arguments, Ground, Setup, Sound
from tests.operating.conftest import surroundings
from tests.ports import free_port
from tests.tables import each_row

pytestmark = pytest.mark.slow

EVERY = [setup for group in BROKEN.values() for setup in group]


def examined(arguments: Arguments, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the findings; an application has a process of its own, where no boundary of a test is."""
    command = ["doctor", *arguments, "--within", "20s", "--json"]
    if "--app" not in arguments:
        with redirect_stdout(StringIO()) as said:
            code = main(command)
        return code, [json.loads(line) for line in said.getvalue().splitlines()]
    process = [sys.executable, "-B", "-m", "retrysafe", *command]
    done = subprocess.run(process, cwd=folder, env=surroundings(), capture_output=True, text=True, check=False)
    assert done.returncode < 2, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.one_of("a broken setup is found by its check alone", of=3)
@pytest.mark.parametrize("setup", EVERY, ids=lambda setup: setup.id)
def test_a_broken_setup_is_found_by_its_check_alone(setup: Setup, ground: Ground) -> None:
    with setup.making(ground) as arguments:
        code, found = examined(arguments, ground.folder)
    assert sorted(one["id"] for one in found) == sorted((setup.finds, *setup.beside)), found
    severities = {one["id"]: one["severity"] for one in found}
    assert severities[setup.finds] == setup.severity
    assert code == int(any(severity != Severity.NOTE for severity in severities.values()))
    assert all(one["evidence"] and one["fix"] for one in found)


@pytest.mark.parametrize("setup", SOUND, ids=lambda setup: setup.name)
def test_of_a_sound_setup_nothing_is_found(setup: Sound, ground: Ground) -> None:
    with setup.making(ground) as arguments:
        assert examined(arguments, ground.folder) == (0, [])


def test_every_check_has_a_broken_setup_or_facts_that_fail_it() -> None:
    made = {setup.finds for setup in EVERY}
    assert made.isdisjoint(UNMADE)
    assert made | set(UNMADE) == set(registry.every())


@each_row("check", UNMADE)
def test_facts_that_fail_a_check(check: str) -> None:
    def facts(found: Mapping[str, Any]) -> dict[str, Any]:
        return {**found, "findings": [Finding(*one) for one in found.get("findings", ())]}

    assert registry.every()[check].judge(facts(UNMADE[check]))


# ------------------------------------------------------------ what is more than a finding


def test_a_lease_that_ends_before_the_transaction_does(ground: Ground) -> None:
    url = postgresql.database(ground)
    postgresql.perform(url, "ALTER DATABASE shop SET idle_in_transaction_session_timeout = '10s'")
    assert [one.id for one in examine(url, 20, [30.0])] == ["postgresql-idle-transaction-timeout"]
    assert examine(url, 20, [5.0]) == []


def test_indexes_that_are_gone_are_made_again(ground: Ground, command: Any) -> None:
    url = postgresql.database(ground)
    postgresql.perform(url, "DROP INDEX retrysafe_records_tombstone", "DROP INDEX retrysafe_outbox_lane")
    done = command("doctor", "--store", url, "--fix")
    assert done.code == 0, done.out
    assert "fixed  postgresql-indexes" in done.out
    assert diagnose(stores=[url], within=20) == []


def test_the_grant_that_is_printed_is_what_a_user_lacks(ground: Ground) -> None:
    url = postgresql.database(ground)
    reader = postgresql.as_reader(url)
    (said,) = diagnose(stores=[reader], within=20)
    postgresql.perform(url, said.fix)
    assert diagnose(stores=[reader], within=20) == []


def test_a_frozen_server_is_a_finding_in_time() -> None:
    with closing(redis.server(*redis.SOUND)) as server:
        server.freeze()
        try:
            said = diagnose(stores=[server.url], within=1)
        finally:
            server.thaw()
    assert [(one.id, one.evidence) for one in said] == [("store-unreachable", "It did not answer within 1 s.")]


def test_a_dead_store_is_a_finding_without_its_password() -> None:
    said = diagnose(stores=[f"postgresql://u:s3cr3t-word@127.0.0.1:{free_port()}/shop"])
    assert [one.id for one in said] == ["store-unreachable"]
    assert "s3cr3t-word" not in repr(said)
