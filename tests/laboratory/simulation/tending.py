"""Those who look after the store: an operator who settles what is in doubt, a sweeper, and who migrates the schema."""

from __future__ import annotations

from retrysafe.claims.codec import JSONCodec
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.records import EffectiveState, Record, StoredResult
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.transitions import Transition
from tests.laboratory.simulation.acting import Act, Actor, Acts, Stage, on_connection
from tests.laboratory.simulation.messages import Message
from tests.laboratory.simulation.servers import LOCK, MIGRATIONS, UNLOCK

_EXPIRABLE = (EffectiveState.COMPLETED, EffectiveState.FAILED)


# ---------------------------------------------------------------- the operator


def operator(stage: Stage, actor: Actor) -> Acts:
    """Look at every key now and then; settle doubts by what really happened, and, where there is a cache, expire."""
    while stage.open:
        yield stage.pause(actor, 3)
        for key in stage.effects:
            try:
                record = yield from stage.parts.read(stage.store, key)
                if record is not None and record.effective_state is EffectiveState.UNKNOWN:
                    yield from _settle_doubt(stage, actor, record)
                elif (
                    record is not None and stage.plan.cached and not stage.calm and record.effective_state in _EXPIRABLE
                ):
                    yield from _expire(stage, actor, record)
            except StoreUnavailable:
                continue


def _settle_doubt(stage: Stage, actor: Actor, record: Record) -> Act[None]:
    """Settle by the truth, when the attempt is over; a hasty operator settles an effect that he sees before."""
    happened = stage.judge.happened(record)
    if not stage.is_over(record.attempt) and not (happened and actor.chance() < stage.plan.hasty):
        return
    event, result = Transition.RESOLVE_RELEASED, None
    if happened:
        event, result = Transition.RESOLVE_COMPLETED, _word("completed", record)
    elif actor.chance() < 0.3:
        event, result = Transition.RESOLVE_FAILED, _word("failed", record)
    steps = stage.parts.settle_doubt(
        stage.store, record.key, event, result, clocks=stage.clocks, attempt=record.attempt
    )
    change = yield from steps
    stage.judge.seen["operator settled" if change.done else "operator came too late"] += 1


def _word(outcome: str, record: Record) -> StoredResult:
    return JSONCodec().encode(f"{outcome} says the operator of {record.attempt}", None)


def _expire(stage: Stage, actor: Actor, record: Record) -> Act[None]:
    """End a window, as `Operator.expire` does."""
    if actor.chance() < 0.7:
        return
    yield from stage.parts.drop(stage.cache, record, stage.plan.cached)
    change = yield from stage.parts.expire(stage.store, record)
    if change.done:
        yield from stage.parts.drop_again(stage.cache, record, stage.plan.cached)
        stage.judge.expired(record, stage.time.now)


# ---------------------------------------------------------------- the sweeper


def sweeper(stage: Stage, actor: Actor) -> Acts:
    """Sweep again and again, a batch at a time; with an archive, archive first and then remove."""
    while stage.open:
        yield stage.pause(actor, 1.5)
        yield from sweep_all(stage)


def last_sweep(stage: Stage, actor: Actor) -> Acts:
    """The sweep after everything is forgotten."""
    yield stage.clocks.memory + 4 * stage.plan.skew
    yield from sweep_all(stage)
    stage.open -= 1


def sweep_all(stage: Stage) -> Act[None]:
    """Go on until a batch is not full."""
    batch = _archive if stage.plan.sweeper == "archives" else _remove
    try:
        while (yield from batch(stage)) >= stage.plan.batch:
            stage.judge.seen["another batch"] += 1
    except StoreUnavailable:
        stage.judge.seen["sweep failed"] += 1


def _remove(stage: Stage) -> Act[int]:
    return (yield from stage.parts.sweep(stage.store, stage.plan.batch))


def _archive(stage: Stage) -> Act[int]:
    records = yield from stage.parts.forgotten(stage.store, stage.plan.batch)
    if not records:
        return 0
    yield Ask(Message("archive", b"", records, None, None), lambda answer: answer)
    gone = yield from stage.parts.remove(stage.store, records)
    return len(records) if gone else 0


# ---------------------------------------------------------------- who migrates and deploys


def migrator(stage: Stage, actor: Actor) -> Acts:
    """Expand the schema, roll the next version out, and contract the schema when nobody of the old one is left.

    Any number of them may do so at once, and each may die anywhere and begin again.
    """
    yield stage.pause(actor, 2)
    yield from _migrate(stage, actor, upto=2)
    yield stage.pause(actor, 3)
    stage.rolled_out = True  # workers start in the next version from now on
    for other in stage.actors:
        if _is_old(other):
            yield stage.pause(actor, 0.7)
            if _is_old(other):
                stage.restart(other)
    yield from _migrate(stage, actor, upto=3)
    stage.open -= 1


def _is_old(actor: Actor) -> bool:
    return actor.deployed and actor.version == 1


def _migrate(stage: Stage, actor: Actor, upto: int) -> Act[None]:
    wanted = [migration for migration in MIGRATIONS if migration.version <= upto]
    while True:
        connection = f"{actor.name}.{actor.asks}"
        try:
            yield from on_connection(stage.parts.migrate(stage.schema, wanted, LOCK, UNLOCK), connection)
            return
        except StoreUnavailable:
            stage.judge.seen["migration failed"] += 1
        finally:
            stage.hang_up(connection)
        yield stage.pause(actor, 1)
