"""Messages on their way: written, taken in their order, and removed, delayed or buried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retrysafe.core.relaying import Verdict
from retrysafe.ports import Ask, OutboxStore, Steps, TransactionalStore
from retrysafe.programs.drivers import ask
from retrysafe.types import Held, Queued


def each(asks: Iterable[Ask[None]]) -> Steps[None]:
    """Put one ask after the other."""
    for request in asks:
        yield from ask(request)


def take(store: TransactionalStore, outbox: OutboxStore, number: int, limit: int) -> Steps[list[Queued] | None]:
    """Begin a transaction that holds a bucket, and return what of it is due; None, and no transaction, if another does.

    What is due is read after the bucket is held: an earlier look would show what its last holder has published since.
    """
    yield from ask(store.begin())
    if not (yield from ask(outbox.hold(number))):
        yield from ask(store.rollback())
        return None
    return (yield from ask(outbox.due(number, limit)))


def conclude(outbox: OutboxStore, verdict: Verdict, *, keep: bool) -> Steps[None]:
    """Write down, in the open transaction, what became of a wave."""
    yield from each(outbox.leave(verdict.gone, keep=keep))
    for delay in verdict.delayed:
        yield from each(outbox.delay(delay))
    for death in verdict.dead:
        yield from each(outbox.bury(death))


def begin(store: TransactionalStore, outbox: OutboxStore, queue: Sequence[Queued]) -> Steps[None]:
    """Write down, in a transaction of its own, that attempts to publish begin."""
    yield from ask(store.begin())
    yield from each(outbox.begun(queue))
    yield from ask(store.commit())


def conclude_fenced(
    store: TransactionalStore, outbox: OutboxStore, held: Held, verdict: Verdict, *, keep: bool
) -> Steps[bool]:
    """Write down what became of a wave in a transaction of its own, if the lease is still ours; False if it is not."""
    yield from ask(store.begin())
    if not (yield from ask(outbox.fence(held))):
        yield from ask(store.rollback())
        return False
    yield from conclude(outbox, verdict, keep=keep)
    yield from each(outbox.withdraw(verdict.withdrawn))
    yield from ask(store.commit())
    return True
