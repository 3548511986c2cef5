"""Webhooks: receive them so that each event is handled once, and send them so that receivers can do the same.

app = Receiver(Boundary("billing", store="postgresql://…", window="7d"), Stripe(secrets))

The integrations are `retrysafe.webhooks.asgi`, ``.wsgi``, ``.starlette`` (FastAPI too), ``.django`` and ``.flask``; the
sender is `retrysafe.webhooks.sender`.
"""

from retrysafe.webhooks.deliveries import Head, Known, WebhookEvent
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.providers import GitHub, Slack, Stripe
from retrysafe.webhooks.receiver import Receiver
from retrysafe.webhooks.signatures import Scheme
from retrysafe.webhooks.standard import StandardWebhooks

__all__ = [
    "DeliveryRefused",
    "GitHub",
    "Head",
    "Known",
    "Receiver",
    "Scheme",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "WebhookEvent",
]
