"""Connecting to RabbitMQ: a refused login says what to correct."""

from __future__ import annotations

from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AuthenticationError, ProbableAuthenticationError
from aiormq.exceptions import InvalidFrameError


class LoginRefused(ConnectionError):
    """The broker answers, and refuses the user, the password or the virtual host."""


async def connect(url: str, **options: Any) -> AbstractConnection:
    """Connect as `aio_pika.connect` does; raises `LoginRefused`, too."""
    try:
        connection: AbstractConnection = await aio_pika.connect(url, **options)
    except (AuthenticationError, ProbableAuthenticationError) as error:
        raise _login_error(str(error)) from error
    except InvalidFrameError as error:
        if "Connection.Close" not in str(error):
            raise
        raise _login_error("it closed the connection instead of opening it; its log says why") from error
    return connection


def _login_error(why: str) -> LoginRefused:
    return LoginRefused(f"the broker refused the login: correct user, password and virtual host in its URL ({why})")
