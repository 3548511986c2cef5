"""Histories of processes that are killed: what they had asked last may have happened, at any time since."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.conftest import require
from tests.faults.helpers import ROOT, driven, environment
from tests.laboratory.histories import UNKNOWN, merged
from tests.laboratory.linearizability import check
from tests.proving.effort import effort
from tests.proving.proofs import Proof
from tests.stores.harnesses import HARNESSES, TRAITS
from tests.stores.harnesses.dynamodb import dynamodb_url
from tests.stores.harnesses.redis import redis_url
from tests.stores.harnesses.sql import mysql_url, postgresql_url

ROWS = (1, 2, 3, 12, 16, 17, 28, 44)
pytestmark = [pytest.mark.fault(*ROWS)]
Prove = Callable[[Proof], None]

STORES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "sqlite": ("sqlite3", lambda path: f"sqlite:///{path}/store.db"),
    "postgresql": ("psycopg", lambda path: postgresql_url()),
    "mysql": ("PyMySQL", lambda path: driven(mysql_url(), "pymysql")),
    "redis": ("redis", lambda path: redis_url()),
    "dynamodb": ("boto3", lambda path: dynamodb_url()),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_histories_of_killed_processes_are_linearizable(
    kind: str, tmp_path: Path, chance: Random, proof: Prove
) -> None:
    harness, url = STORES[kind]
    service, make = HARNESSES[harness]
    if service is not None:
        require(service)
    prepared = make(tmp_path)
    keys = [secrets.token_bytes(32) for _ in range(6)]
    try:
        arguments = [kind, url(tmp_path), str(tmp_path), str(chance.random()), str(effort(4, 30))]
        command = [sys.executable, "-m", "tests.histories.killing", *arguments, *(key.hex() for key in keys)]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    finally:
        prepared.close()
    assert done.returncode == 0, done.stderr
    operations = merged(tmp_path.glob("*.history"))
    broken = check(operations, TRAITS[kind])
    assert not broken, str(broken[0])
    cut_off = sum(one.answer is UNKNOWN for one in operations)
    assert cut_off > 0
    for fault, count in (
        ("worker killed", int(done.stdout)),
        ("worker killed in mid-step", cut_off),
        ("operation checked", len(operations)),
        ("history checked", len(keys)),
    ):
        proof(Proof("histories", kind, "", fault, count, rows=ROWS))
