"""Every ``**options`` refuses what it does not know, and says what was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrysafe import Boundary, ConfigurationError
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.http.policy import policy
from retrysafe.http.wsgi import IdempotencyMiddleware as Wsgi
from retrysafe.messaging import Inbox
from retrysafe.messaging.brokers.faststream import InboxMiddleware
from retrysafe.webhooks.sender import AsyncSender, Sender
from tests.tables import each_row

MISSPELT: dict[str, tuple[Callable[..., Any], str, str]] = {
    "Sender": (lambda inbox, **given: Sender(httpx.Client(), **given), "max_attemps", "max_attempts"),
    "AsyncSender": (lambda inbox, **given: AsyncSender(httpx.AsyncClient(), **given), "deadlin", "deadline"),
    "policy": (lambda inbox, **given: policy("off", **given), "on_5x", "on_5xx"),
    "handler": (lambda inbox, **given: inbox.handler("c", **given), "max_attemps", "max_attempts"),
    "batch_handler": (lambda inbox, **given: inbox.batch_handler("c", **given), "max_attemps", "max_attempts"),
    "set_handler": (lambda inbox, **given: inbox.set_handler("c", **given), "backof_base", "backoff_base"),
    "FastStream": (lambda inbox, **given: InboxMiddleware(inbox, "c", **given), "max_attemps", "max_attempts"),
    "ASGI": (
        lambda inbox, **given: IdempotencyMiddleware(None, inbox.boundary, **{"principal": "shared", **given}),
        "requird",
        "required",
    ),  # type: ignore[arg-type]
    "WSGI": (
        lambda inbox, **given: Wsgi(None, inbox.boundary, **{"principal": "shared", **given}),
        "requird",
        "required",
    ),  # type: ignore[arg-type]
}


@each_row("make, given, meant", MISSPELT.values(), ids=list(MISSPELT))
def test_a_misspelt_option_is_refused_with_what_was_meant(
    make: Callable[..., Any], given: str, meant: str, tmp_path: Path
) -> None:
    boundary = Boundary("options", store=f"sqlite:///{tmp_path / 'shop.db'}", effects="transactional")
    with (
        closing(boundary),
        pytest.raises(ConfigurationError, match=rf"{given}= is no option; there are .*Did you mean {meant}="),
    ):
        make(Inbox(boundary), **{given: 1})


def test_a_required_key_is_no_option_of_a_policy() -> None:
    with pytest.raises(ConfigurationError, match="requird= is no option; there are methods, "):
        policy("off", requird=True)  # type: ignore[call-arg]
