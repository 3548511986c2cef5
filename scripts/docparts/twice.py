"""The one table of the cases in which code can still run twice, shown wherever that is the question.

Every store and every mode must be in it, or the pages cannot be made.
"""

from __future__ import annotations

from typing import NamedTuple

from docparts.markdown import table
from retrysafe.protocol.outcomes import ModeKind
from tests.stores.harnesses import LOSSES

SAME = "the same"
NAMES = {
    ModeKind.OWN: "transactional, the boundary's own transaction",
    ModeKind.JOINED: "transactional, `tx=`",
    ModeKind.KEYED: "keyed",
    ModeKind.EXTERNAL: "external",
}


class Case(NamedTuple):
    """Something that happens to an attempt, whatever the store."""

    happens: str
    again: str
    twice: str


DIES = "the attempt raises, is cancelled, or dies before commit"
BY_MODE: dict[ModeKind, tuple[Case, ...]] = {
    ModeKind.OWN: (
        Case(DIES, "yes, by the next caller", "rows: no, they were rolled back. **Anything else it did: yes**"),
        Case("deadlock or serialization failure", "yes, at once, up to 5 times", "rows: no. **Anything else: yes**"),
        Case(
            "the answer to COMMIT is lost",
            "no: the record is read back. If that fails too, `StoreUnavailable`, and a retry with the same key gets "
            "the truth",
            "no",
        ),
        Case(
            "the handler commits in the middle",
            "no: the key is *unknown*",
            'no, unless a person or probe says "released"',
        ),
    ),
    ModeKind.JOINED: (
        Case(
            "you roll back, or your process dies before your commit",
            "yes, by the next caller",
            "rows: no, they were rolled back. **Anything else it did: yes**",
        ),
        Case(
            "`RetryTransaction`: a deadlock or serialization failure",
            "yes, when you run the transaction again",
            "rows: no. **Anything else: yes**",
        ),
        Case("the answer to your COMMIT is lost", "no, if it was carried out: the same key gets the result", "no"),
        Case(
            "you catch an exception from the block and commit `tx`",
            "no: the key is *unknown*",
            'no, unless a person or probe says "released"',
        ),
    ),
    ModeKind.KEYED: (
        Case(
            "the attempt raises or is cancelled, also *after* its effect",
            "yes: the key was released",
            "only if the receiver does not honour `key_for(…)`",
        ),
        Case("the attempt dies", "yes, once its lease has lapsed", SAME),
        Case(
            "the attempt is paused, or cut off from the store, for longer than its lease",
            "yes, **at the same time as the paused one**",
            SAME,
        ),
        Case(
            "the store does not answer when the result is to be stored",
            "the caller gets its result; a retry runs again after the lease has lapsed",
            SAME,
        ),
        Case("the result can't be encoded", "no: completed, result withheld", "no"),
    ),
    ModeKind.EXTERNAL: (
        Case("the attempt raises, is cancelled, or dies", "no: *unknown*", "no"),
        Case("it said `not_executed()` and raises", "yes", "**yes, if that was not true**"),
        Case(
            'a probe or a person settles the key as "released"',
            "yes",
            "**yes, if that was not true, or the old attempt is still alive and has its effect later**",
        ),
        Case(
            "the attempt is paused between `ensure_held()` and its effect, for longer than its lease",
            "no: *unknown*",
            'no, until an operator settles the key as "released"',
        ),
        Case(
            "the attempt never calls `ensure_held()` and is paused earlier",
            SAME,
            "the same, but much more likely",
        ),
    ),
}

ANYWHERE = (
    '**After the window** the key is new work, unless `on_expired="refuse"`. After `memory=` it always is.',
    (
        "**Another identity.** Boundary name, scope, operation, key and `secret=` make up a key's identity. Renaming "
        "or moving a function whose operation is not named, renaming a boundary, changing the scope's format, or "
        "changing the secret makes every earlier key new."
    ),
    "**A new key for an old intent.** A client that makes a new key on each retry gets a new effect on each retry.",
    '**No key**, with `on_missing="pass"`: the operation runs unguarded.',
    (
        "**One operation in two services.** Within a process, functions, boundaries, receivers and consumers that "
        "would claim the same keys are refused. Between processes that share a store the collision is not detected: "
        "one service gets the result of the other, so that its own operation did not run. Blocks of `claim` without "
        "`operation=` share the keys of their boundary."
    ),
    (
        "**`payload=None`**: the same key with another payload gets the result of the first payload. Nothing runs "
        "twice, but an operation that should have run did not."
    ),
    "**A key that a person expires** (`retrysafe keys expire`) is new work.",
    '**Over HTTP, with `on_store_error="open"`**, requests that arrive while the store does not answer run unguarded.',
    (
        '**Behind a gateway, with `effects="keyed"`**, a request whose answer was lost is sent again with the same '
        "derived key. A service that ignores the key carries the request out twice."
    ),
    (
        "**A tool call that a model words anew**, or a run that starts again under another id, is a new call of an "
        "agent: give `once()` of `ToolGuard` the `key=` that names the intent, where there is one."
    ),
    (
        "**A sync tool in a thread whose caller has given it up**, as by `asyncio.wait_for(asyncio.to_thread(tool))`, "
        "goes on, so that the model's next equal call counts as wanted beside it: make a tool with a time-out "
        "`async def`, or give `once()` of `ToolGuard` the `key=`. Time-outs of Pydantic AI's own threads are seen."
    ),
    (
        "**The store's clock is set forward.** Leases end early, and their holders are fenced. If the clock is set "
        "forward by more than the window, the key is new work."
    ),
    "**Two stores.** A record in one database does not guard work that is claimed in another.",
    (
        "**Deleted records.** Deleting a *running* or *unknown* record by hand frees its key while an attempt may be "
        "alive."
    ),
    "**A fork inside a claim**: the parent and the child both continue the attempt.",
)


def by_mode() -> str:
    """Show the possible fates of an attempt, one table for each mode."""
    return "\n".join(f"### {name[0].upper()}{name[1:]}\n\n{of_mode(ground)}" for ground, name in NAMES.items())


def of_mode(ground: ModeKind) -> str:
    """Show the possible fates of an attempt in one mode."""
    return table(("what happens", "code runs again?", "effect twice?"), BY_MODE[ground])


def by_store() -> str:
    """Show the possible faults of each store."""
    return "\n".join(f"### {name}\n\n{of_store(name)}" for name in LOSSES)


def of_store(name: str) -> str:
    """Show the possible faults of one store, and their effect in each of its modes."""
    losses = LOSSES[name]
    head = ("what happens", "what is lost", "keyed", "external")
    if not any(one.transactional for one in losses):
        return table(head, (one[:4] for one in losses))
    return table(
        (*head[:2], "transactional", *head[2:]),
        ((one.happens, one.lost, one.transactional, one.keyed, one.external) for one in losses),
    )


def anywhere() -> str:
    """List the causes of a second run in any mode and store."""
    return "".join(f"- {text}\n" for text in ANYWHERE)
