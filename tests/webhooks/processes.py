"""One process that receives a delivery: started twice, they race; killed in its handler, it has not handled it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from retrysafe import Boundary
from retrysafe.webhooks import Receiver, WebhookEvent
from tests.webhooks.providers import NOW, PROVIDERS


def main(name: str, store: str, provider_name: str, effects: str, folder: str, dies: str) -> None:
    """Receive one delivery when a line comes in, and print the status and whether it was a duplicate."""
    provider, place = PROVIDERS[provider_name], Path(folder)
    terms = {"effects": effects, "observers": ()}
    lease = "1s" if dies == "dies" else "60s"
    boundary = Boundary(name, store=store, window="7d", lease=lease, **terms)  # type: ignore[arg-type]
    receiver = Receiver(boundary, provider.receiver_scheme(), clock=lambda: NOW)

    @receiver.on(provider.type)
    def handle(event: WebhookEvent[object]) -> None:
        with (place / "ledger").open("a") as ledger:
            ledger.write(f"{event.id}\n")
        if dies == "dies":
            os.kill(os.getpid(), signal.SIGKILL)

    delivery = provider.deliver()
    print("ready", flush=True)
    sys.stdin.readline()
    answer = receiver.receive(delivery.headers, delivery.body)
    print(answer.status, dict(answer.headers).get(b"idempotent-replayed", b"").decode() or "first", flush=True)
    boundary.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
