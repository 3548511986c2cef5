"""Stores by TLS, with an authority of one's own: claims work, and whom nobody trusts gets none."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrysafe import Boundary, ConfigurationError, StoreUnavailable
from tests.conftest import require
from tests.faults.proxies.tls import Front, fronted

STORES = {
    "redis": ("rediss", {"ssl_ca_certs": "{cafile}"}, {}),
    "postgresql": (
        "postgresql",
        {"sslmode": "verify-full", "sslrootcert": "{cafile}"},
        {"sslmode": "verify-full", "sslrootcert": "{other}"},
    ),
}


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


@pytest.fixture
def plain(kind: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("migrated")) if kind == "postgresql" else os.environ["RETRYSAFE_TEST_REDIS"]


@pytest.fixture
def front(kind: str, plain: str, tmp_path: Path) -> Iterator[Front]:
    with fronted(plain, tmp_path, upgrades=kind == "postgresql") as made:
        yield made


def by_tls(kind: str, plain: str, front: Front, options: dict[str, str], other: str = "") -> str:
    scheme = STORES[kind][0]
    given = {name: value.format(cafile=front.cafile, other=other) for name, value in options.items()}
    return front.url(plain, scheme, **given)


@pytest.mark.slow
async def test_claims_are_made_and_replayed(kind: str, plain: str, front: Front) -> None:
    name, url = f"tls-{secrets.token_hex(6)}", by_tls(kind, plain, front, STORES[kind][1])
    boundary = Boundary(name, store=url, effects="keyed")

    @boundary.once(key="name")
    def work(name: str) -> str:
        return f"{name} {secrets.token_hex(6)}"

    @boundary.once(key="name")
    async def awork(name: str) -> str:
        return f"{name} {secrets.token_hex(6)}"

    assert work("sync") == work("sync")
    assert await awork("async") == await awork("async")
    await boundary.aclose()


@pytest.mark.slow
async def test_whom_nobody_trusts_gets_no_claim(kind: str, plain: str, front: Front, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with fronted(plain, tmp_path / "other") as other:
        url = by_tls(kind, plain, front, STORES[kind][2], other.cafile)
    boundary = Boundary("tls", store=url, effects="keyed")
    with (
        pytest.raises((ConfigurationError, StoreUnavailable), match=r"(?i)certificate"),
        boundary.claim("sync"),
    ):
        pytest.fail("it was claimed")
    with pytest.raises((ConfigurationError, StoreUnavailable), match=r"(?i)certificate"):
        async with boundary.claim("async"):
            pytest.fail("it was claimed")
    await boundary.aclose()
