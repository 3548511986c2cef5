"""The relay of the orders' outbox; any number of them may run."""

from __future__ import annotations

import asyncio

from examples.shop.places import relay

if __name__ == "__main__":
    asyncio.run(relay("orders"))
