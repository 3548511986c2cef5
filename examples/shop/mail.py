"""Mail: the mails' provider is not in our transaction, but recognises a key that is derived from the message."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

from examples.shop.places import FOLDER, LEASE, WINDOW, consume, make_tables, store
from retrysafe import Boundary
from retrysafe.messaging import Inbox, InboxMessage

make_tables("provider", "mails (key TEXT PRIMARY KEY, receiver TEXT, about TEXT, asked INTEGER)")
inbox = Inbox(Boundary("mail", store=store("mail"), effects="keyed", lease=LEASE, window=WINDOW))

SEND = "INSERT INTO mails VALUES (?, ?, ?, 1) ON CONFLICT (key) DO UPDATE SET asked = asked + 1"


@inbox.handler("mail")
def confirm(message: InboxMessage[dict[str, Any]]) -> None:
    """Write to who has ordered: once, or again under the same key."""
    order = message.data
    send(key=message.claim.key_for("provider"), receiver=order["customer"], about=order["id"])


def send(*, key: str, receiver: str, about: str) -> None:
    """Send a mail as a provider does: of two requests with one key, the second one sends nothing."""
    with closing(sqlite3.connect(FOLDER / "provider.db", timeout=30)) as provider, provider:
        provider.execute(SEND, (key, receiver, about))


if __name__ == "__main__":
    asyncio.run(consume("mail", confirm))
