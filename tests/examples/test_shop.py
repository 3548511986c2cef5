"""The shop of the examples, as its readers run it, on every broker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import require
from tests.docs.pages import ROOT
from tests.messaging.harnesses import HARNESSES
from tests.messaging.harnesses.base import Place

ORDERS = 60
ALL_IS_WELL = """\
    60 orders
    60 reserved
    60 reserved for different orders
     0 reserved out of order
"""


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.shop", "--orders", str(ORDERS), "--folder", str(folder), *arguments]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    environment = {**os.environ, **paths, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


def all_is_well(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(ALL_IS_WELL)
    assert "    60 mails\n    60 orders with a mail\n" in done.stdout


@pytest.mark.slow
def test_every_order_is_reserved_and_mailed_once_while_processes_are_killed(tmp_path: Path) -> None:
    done = run(tmp_path / "shop", "--faults")
    all_is_well(done)
    assert int(done.stdout.splitlines()[-1].split()[0]) > 0, done.stdout
    again = run(tmp_path / "shop")
    assert again.returncode == 2
    assert "is there already" in again.stderr


@pytest.mark.one_of("the shop's brokers", of=8)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name, harness in HARNESSES.items() if harness.left and harness.service])
def test_on_every_broker(kind: str, tmp_path: Path) -> None:
    harness, name = HARNESSES[kind], f"shop-{uuid4().hex}"
    require(kind)
    url = harness.url(tmp_path)
    all_is_well(run(tmp_path / "shop", "--broker", url, SHOP_NAME=name))
    assert harness.remove is not None
    for service in ("inventory", "mail"):
        asyncio.run(harness.remove(Place(url, name, "orders.placed", service, 4)))
