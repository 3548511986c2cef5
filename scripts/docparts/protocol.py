"""The state machine, and what becomes of a record when work ends."""

from __future__ import annotations

from docparts.markdown import table
from retrysafe.protocol.outcomes import OUTCOMES, ModeKind, Settlement, Transaction
from retrysafe.protocol.records import State
from retrysafe.protocol.steps import table as step_table
from retrysafe.protocol.transitions import RULES, mermaid
from retrysafe.protocol.transitions import table as transition_table


def state_diagram() -> str:
    """The state machine as a Mermaid diagram."""
    return f"```mermaid\n{mermaid()}```\n"


def transitions() -> str:
    """The state machine as a table."""
    return transition_table()


def steps() -> str:
    """The table of what an attempt does with the row of a step."""
    return step_table()


def states() -> str:
    """The states of a record."""
    return ", ".join(f"*{state.value}*" for state in State) + "\n"


def outcomes() -> str:
    """Show the fate of record and transaction, for every ending of the work and every ground."""
    head = ("how the work ended", *(ground.value for ground in ModeKind))
    rows = [
        (ending.value, *(_settlement(one, ground) for one, ground in zip(settlements, ModeKind, strict=True)))
        for ending, settlements in OUTCOMES.items()
    ]
    return table(head, rows)


def _settlement(settlement: Settlement, ground: ModeKind) -> str:
    if settlement.event is None:
        return "rolled back; no record"
    target = RULES[settlement.event].target
    assert target is not None
    own = ground is ModeKind.OWN and settlement.transaction is Transaction.SAVEPOINT
    return f"{'back to the savepoint, ' if own else ''}*{target.value}*"
