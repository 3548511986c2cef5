"""The encoding of text on a caller's connection, which has to take every character."""

from __future__ import annotations

from typing import Any

from retrysafe.errors import ConfigurationError

_POSTGRESQL = "utf8", "psycopg.connect(…, client_encoding='utf8'), or SET client_encoding TO 'UTF8'"
_MYSQL = "utf8mb4", "charset='utf8mb4' where you connect, with Django in OPTIONS"


def refuse_encoding(driver: Any) -> None:
    """Refuse a driver's connection on which characters would be lost ; the driver knows, no server is asked."""
    found = _encoding_of(driver)
    if found is None:
        return
    encoding, (needed, how) = found
    if encoding.lower().strip("'").replace("-", "") != needed:  # PgBouncer says what its client has written
        raise ConfigurationError(
            f"tx= is a connection with the encoding {encoding}, in which not every character can be sent and read. "
            f"Nothing of this claim was run. It has to be {needed}: {how}."
        )


def _encoding_of(driver: Any) -> tuple[str, tuple[str, str]] | None:
    """What the connection's text is encoded in, what it should be, and how that is done; None: there is no choice."""
    if hasattr(driver, "character_set_name"):  # PyMySQL, asyncmy, mysqlclient
        return driver.character_set_name(), _MYSQL
    if hasattr(driver, "get_settings"):  # asyncpg
        return driver.get_settings().client_encoding, _POSTGRESQL
    if hasattr(driver, "info"):  # psycopg
        return driver.info.parameter_status("client_encoding"), _POSTGRESQL
    return None
