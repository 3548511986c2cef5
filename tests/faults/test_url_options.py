"""Options of a store's URL: those that nothing knows are told as a wrong setting, never as an outage."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import ConfigurationError
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers.base import sqlstate
from tests.tables import each_row

SHOP = "me:secret@127.0.0.1:1/shop"


@each_row(
    "url, named",
    [
        (f"postgresql://{SHOP}?sslmod=require", "sslmode meant"),
        (f"postgresql://{SHOP}?schema=public", "search_path"),
        (f"postgresql://{SHOP}?pgbouncer=true", "recognised"),
        (f"postgresql://{SHOP}?charset=utf8", "UTF-8"),
        (f"postgresql+asyncpg://{SHOP}?prepared_statement_cache_size=0", "recognised"),
        (f"postgresql+asyncpg://{SHOP}?sslmod=require", "sslmode meant"),
        (f"postgresql://{SHOP}?pool=none", "at least 1"),
        (f"postgresql+asyncpg://{SHOP}?pool=0", "at least 1"),
        (f"mysql://{SHOP}?pool=0", "at least 1"),
        (f"mysql://{SHOP}?charset=latin1", "utf8mb4"),
        ("redis://127.0.0.1:1/0?protocol=4", "protocol"),
    ],
)
def test_an_option_that_nothing_knows_is_refused_when_it_is_built(url: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        connect(url)
    assert "secret" not in str(caught.value)


@each_row(
    "url",
    [
        f"postgresql://{SHOP}?ssl=true&pool=3&sslrootcert=x",
        f"postgresql+asyncpg://{SHOP}?ssl=require&application_name=x&my.setting=1",
        f"mysql://{SHOP}?charset=utf8mb4&pool=3",
        "redis://127.0.0.1:1/0?protocol=3",
    ],
)
def test_an_option_of_a_copied_url_is_understood(url: str) -> None:
    connect(url).close()


@each_row("scheme", ["postgresql", "mysql", "redis"])
def test_a_second_at_is_refused_without_the_password(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match="%40") as caught:
        connect(f"{scheme}://shop:pa@S3CRET@127.0.0.1:1/0").client()
    assert "S3CRET" not in str(caught.value)


class _Psycopg2(Exception):
    pgcode = "40001"


@each_row("error", [_Psycopg2("again"), Exception({"C": "40001", "M": "again"})])
def test_errors_of_other_drivers_are_understood(error: Any) -> None:
    assert sqlstate(error) == "40001"
