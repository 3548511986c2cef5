"""The error of a receiver for a delivery that it refuses."""

from __future__ import annotations

from typing import Literal

from retrysafe.errors import RetrysafeError

Reason = Literal[
    "signature-missing",
    "signature-invalid",
    "field-ambiguous",
    "timestamp-invalid",
    "timestamp-outside",
    "header-repeated",
    "payload-invalid",
    "id-missing",
    "body-too-large",
    "encoding-unsupported",
    "media-type-unsupported",
]
"""Why a delivery was refused; stable, also in the answer and the log."""

STATUSES: dict[Reason, int] = {
    "signature-missing": 400,
    "signature-invalid": 400,
    "field-ambiguous": 400,
    "timestamp-invalid": 400,
    "timestamp-outside": 400,
    "header-repeated": 400,
    "payload-invalid": 400,
    "id-missing": 400,
    "body-too-large": 413,
    "encoding-unsupported": 415,
    "media-type-unsupported": 415,
}
"""The status of the answer for each reason. None is a success, so a genuine provider delivers again."""


class DeliveryRefused(RetrysafeError):
    """The delivery was refused: its signature could not be verified, or it cannot be read.

    Nothing was run and no key was used, so the provider's next delivery of the same event is judged anew.
    ``reason`` says why. If genuine deliveries are refused, check that the secret is the endpoint's, that the body
    reaches the receiver unchanged, byte by byte, and that this machine's clock is right.
    """

    effect_happened = "no"
    safe_new_key = True

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason: Reason = reason

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return STATUSES[self.reason]
