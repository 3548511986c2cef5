"""Webhooks: the names that users call, and the answers by which a provider goes on or stops."""

from __future__ import annotations

from docparts.markdown import table
from docparts.reference import reference
from retrysafe import webhooks
from retrysafe.webhooks import sender
from retrysafe.webhooks.answers import ANSWERS
from retrysafe.webhooks.errors import STATUSES


def names() -> str:
    """Every public name of the receiving side."""
    return "\n".join(reference(name, getattr(webhooks, name)) for name in webhooks.__all__)


def sending() -> str:
    """Every public name of the sending side."""
    return "\n".join(reference(name, getattr(sender, name)) for name in sender.__all__)


def answers() -> str:
    """List the answers to each error of a claim, and to each reason not to take a delivery."""
    claims = [
        (
            f"`{kind.__name__}`",
            str(answer.status),
            "" if answer.status == 200 else f"`{answer.code}`",
            _pause(answer[2]),
        )
        for kind, answer in ANSWERS
    ]
    refusals = [("`DeliveryRefused`", str(status), f"`{reason}`", "") for reason, status in STATUSES.items()]
    return table(("what", "status", "code", "`Retry-After`, unless the error says so"), claims + refusals)


def _pause(seconds: int | None) -> str:
    return "" if seconds is None else f"{seconds} s"
