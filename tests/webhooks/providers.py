"""The four providers as they deliver: recorded payloads, signed as each of them signs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retrysafe.webhooks import GitHub, Scheme, Slack, StandardWebhooks, Stripe

NOW = 1_700_000_000
PAYLOADS = Path(__file__).parent / "payloads"
Headers = dict[str, str]


def _hmac(secret: bytes, content: bytes) -> bytes:
    return hmac.new(secret, content, hashlib.sha256).digest()


def _standard(secret: str, id: str, body: bytes, now: int) -> Headers:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = base64.b64encode(_hmac(key, f"{id}.{now}.".encode() + body)).decode()
    return {"webhook-id": id, "webhook-timestamp": str(now), "webhook-signature": f"v1,{digest}"}


def _stripe(secret: str, id: str, body: bytes, now: int) -> Headers:
    digest = _hmac(secret.encode(), f"{now}.".encode() + body).hex()
    return {"Stripe-Signature": f"t={now},v1={digest},v0={'0' * 64}"}


def _github(secret: str, id: str, body: bytes, now: int) -> Headers:
    return {
        "User-Agent": "GitHub-Hookshot/044aadd",
        "X-GitHub-Delivery": id,
        "X-GitHub-Event": "issues",
        "X-GitHub-Hook-ID": "292430182",
        "X-Hub-Signature": "sha1=7d38cdd689735b008b3c702edd92eea23791c5f6",
        "X-Hub-Signature-256": "sha256=" + _hmac(secret.encode(), body).hex(),
    }


def _slack(secret: str, id: str, body: bytes, now: int) -> Headers:
    digest = _hmac(secret.encode(), f"v0:{now}:".encode() + body).hex()
    return {"X-Slack-Request-Timestamp": str(now), "X-Slack-Signature": f"v0={digest}"}


@dataclass(frozen=True)
class Delivery:
    """One delivery, as it is on the wire."""

    headers: Headers
    body: bytes


@dataclass(frozen=True)
class Provider:
    """One provider: how it signs, which event it delivers, and how the event is made another one."""

    name: str
    scheme: Callable[..., Scheme]
    sign: Callable[[str, str, bytes, int], Headers]
    secrets: tuple[str, str]
    type: str
    event_id: str
    path_of_id: str | None
    signs_time: bool = True

    @property
    def payload(self) -> bytes:
        return (PAYLOADS / f"{self.name}.json").read_bytes()

    def receiver_scheme(self, **options: Any) -> Scheme:
        return self.scheme(self.secrets[0], **options)

    def deliver(
        self, id: str | None = None, *, now: int = NOW, secret: str | None = None, body: bytes | None = None
    ) -> Delivery:
        """One delivery of the event ``id``, signed at ``now``."""
        id = id or self.event_id
        body = self.body_of(id) if body is None else body
        headers = self.sign(secret or self.secrets[0], id, body, now)
        return Delivery({"Content-Type": "application/json", **headers}, body)

    def body_of(self, id: str) -> bytes:
        """The payload, as it is where ``id`` is the recorded event's, and else that of another event."""
        if id == self.event_id:
            return self.payload
        document = json.loads(self.payload)
        document[self.path_of_id or "_other"] = id
        return json.dumps(document, ensure_ascii=False).encode()


STANDARD = Provider(
    "standard",
    StandardWebhooks,
    _standard,
    ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"),
    "contact.created",
    "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W",
    None,
)
STRIPE = Provider(
    "stripe",
    Stripe,
    _stripe,
    ("whsec_test_secret", "whsec_rolled"),
    "invoice.paid",
    "evt_1MqqbKLt4dXK03v5qaIbiNCC",
    "id",
)
GITHUB = Provider(
    "github",
    GitHub,
    _github,
    ("It's a Secret to Everybody", "another"),
    "issues",
    "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    None,
    signs_time=False,
)
SLACK = Provider(
    "slack",
    Slack,
    _slack,
    ("8f742231b10e8888abcd99yyyzzz85a5", "regenerated"),
    "app_mention",
    "Ev123ABC456",
    "event_id",
)
PROVIDERS = {provider.name: provider for provider in (STANDARD, STRIPE, GITHUB, SLACK)}


def tampered(delivery: Delivery) -> Delivery:
    """One byte of the body is another."""
    at = len(delivery.body) // 2
    return replace(delivery, body=delivery.body[:at] + bytes([delivery.body[at] ^ 1]) + delivery.body[at + 1 :])
