"""The promises of stores, and the losses that they cannot survive."""

from __future__ import annotations

from docparts.markdown import table
from retrysafe.backends import migrations
from retrysafe.backends.registry import stores


def capabilities() -> str:
    """List each store's declared promises and limits."""
    yes_no = {True: "yes", False: "no"}
    declared = [store.capabilities for store in stores()]
    rows = [
        (
            one.name,
            yes_no[one.transactions],
            yes_no[one.waits_in_transaction],
            one.clock,
            one.durability,
            one.tested_on or "itself",
        )
        for one in declared
    ]
    head = ("store", "transactions", "a duplicate may wait inside `tx=`", "whose clock", "what survives", "tested on")
    return table(head, rows)


def store_guide() -> str:
    """For whom each store is, and what it cannot survive."""
    parts: list[str] = []
    for store in stores():
        known = store.capabilities
        parts.append(f"## {known.name}\n\nChoose it {known.choose_when}.\n")
        shared = "can share your transaction" if known.transactions else "cannot share your transaction"
        parts.append(
            f"- The record {shared}.\n- The clock that decides: {known.clock}.\n- What survives: {known.durability}.\n"
            f"- What a failover loses: {known.failover}.\n"
        )
        if known.stand_in:
            parts[-1] += f"- Tested on a stand-in, {known.stand_in}, and not on the product itself.\n"
        if known.never_run:
            parts[-1] += "- **Never run**: its statements were parsed, and no server has performed them.\n"
        quotas = known.quotas or "cannot be kept"
        parts[-1] += f"- Quotas: {quotas}.\n"
        parts.append("It can't survive:\n")
        parts.append("".join(f"- {fault}\n" for fault in known.cannot_survive))
    return "\n".join(parts)


def schema() -> str:
    """The SQL schema of PostgreSQL, as `retrysafe migrate --sql` prints it."""
    return f"```sql\n{migrations.script('postgresql')}```\n"
