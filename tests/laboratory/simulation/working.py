"""The workers of a simulation: they guard an effect, the way `retrysafe.claims.claim` does it."""

from __future__ import annotations

from retrysafe.claims.outcome import HandlerSignals
from retrysafe.errors import ResultUnreadable, SchemaOutdated, StoreUnavailable
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.outcomes import Ending, ModeKind
from retrysafe.protocol.procedures import ClaimResult, NotWon, Won
from retrysafe.protocol.records import ClaimRequest, Ownership, Record, State, StoredResult
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.transitions import Transition
from tests.laboratory.simulation.acting import Act, Actor, Acts, Cancelled, Stage, on_connection
from tests.laboratory.simulation.judging import result_of
from tests.laboratory.simulation.messages import Message
from tests.laboratory.simulation.servers import FIT, CacheServer


class Refused(Exception):
    """A fenced resource has seen a higher token."""


class Failed(Exception):
    """The handler failed before it had any effect."""


def worker(stage: Stage, actor: Actor, key: bytes, payload: bytes, calls: int) -> Acts:
    """Call the guarded operation until it is answered, and then again as a client that lost the answer."""
    yield stage.pause(actor, 4)
    for _ in range(calls):
        while not (yield from call(stage, actor, key, stage.fingerprint(actor.version, payload))):
            yield stage.pause(actor, 1.5)
        yield stage.pause(actor, 3)
    stage.open -= 1


def late_worker(stage: Stage, actor: Actor, key: bytes) -> Acts:
    """The last retry, when faults have ended: comes with the payload and fingerprint that the key has by then."""
    while True:
        yield stage.pause(actor, 1.5)
        record = yield from stage.parts.read(stage.store, key)
        if (yield from call(stage, actor, key, record.fingerprint if record else b"payload")):
            record = yield from stage.parts.read(stage.store, key)
            if record is None or record.state in (State.COMPLETED, State.FAILED):
                break
    stage.open -= 1


def call(stage: Stage, actor: Actor, key: bytes, fingerprint: bytes) -> Act[bool]:
    """One call of the guarded operation: True when the caller got an answer."""
    try:
        if stage.plan.fleet:
            yield from _require_schema(stage, actor)
        want = stage.want(actor, key, fingerprint)
        while True:
            outcome = yield from _claim(stage, actor, want)
            if isinstance(outcome, Won):
                return (yield from _hold(stage, actor, outcome.ownership))
            if outcome.decision is not Decision.DOUBT or not actor.probes:
                return _refused(stage, actor, outcome)
            assert outcome.record is not None
            if not (yield from _probe(stage, actor, outcome.record)):
                return False
    except StoreUnavailable:
        return False
    except SchemaOutdated:
        stage.judge.seen["schema outdated"] += 1
        return False
    finally:
        actor.end_attempt()


def _require_schema(stage: Stage, actor: Actor) -> Act[None]:
    """Once in the life of a process, as a backend does it."""
    if actor.checked_life != actor.lives:
        needed, _ = FIT[actor.version]
        yield from on_connection(stage.parts.require(stage.schema, needed, "migrate"), actor.name)
        actor.checked_life = actor.lives


def _claim(stage: Stage, actor: Actor, want: ClaimRequest) -> Act[ClaimResult]:
    """Ask the cache first, if there is one; whatever happens to it, the store decides."""
    store = stage.stores[actor.version]
    if not stage.plan.cached:
        return (yield from stage.parts.claim(store, want))
    looked = None
    try:
        answer, looked = yield from stage.parts.look(stage.cache, want)
    except StoreUnavailable:
        answer = None
    if answer is not None:
        assert answer.record is not None
        assert looked is not None
        stage.judge.nearby(answer.record, looked - CacheServer.OFFSET)
        return answer
    outcome = yield from stage.parts.claim(store, want)
    if looked is not None:
        try:
            yield from stage.parts.keep(stage.cache, outcome, looked, stage.plan.cached)
        except StoreUnavailable:
            stage.judge.seen["not kept nearby"] += 1
    return outcome


def _refused(stage: Stage, actor: Actor, outcome: NotWon) -> bool:
    """React to a claim that was not won; tell whether it is an answer."""
    decision, record, _ = outcome
    if decision not in (Decision.REPLAY, Decision.REPLAY_FAILURE):
        stage.judge.seen[decision.name.lower()] += 1
        if decision is Decision.REUSED and stage.fingerprints_differ:
            stage.judge.seen["reused across versions"] += 1
        return decision is Decision.REUSED
    assert record is not None
    assert record.result is not None
    if stage.plan.fleet and not _read(stage, actor, record.result):
        return True  # a typed error is an answer too, and the work is not done again
    stage.judge.seen["replayed"] += 1
    stage.judge.answered(record.attempt, record.token, record.result)
    return True


def _read(stage: Stage, actor: Actor, stored: StoredResult) -> bool:
    """Tell whether the codec of the actor's version could read a result."""
    try:
        stage.parts.decode(stored, actor.version)
    except ResultUnreadable:
        stage.judge.seen["unreadable"] += 1
        return False
    if stored.codec_version > actor.version:
        stage.judge.misread(stored, actor.version)
    return True


# ---------------------------------------------------------------- holding a key


def _hold(stage: Stage, actor: Actor, ownership: Ownership) -> Act[bool]:
    """Do the work of a won claim, and record how it ended."""
    result = result_of(ownership.attempt, ownership.token, actor.version)
    if actor.cancelled:
        ending = Ending.NOT_EXECUTED
    else:
        ending = yield from _work(stage, actor, ownership)
    ground = ModeKind.KEYED if stage.effects[ownership.key] == "keyed" else ModeKind.EXTERNAL
    word = stage.parts.settlement_of(ending, ground)
    assert word.event is not None
    store = stage.stores[actor.version]
    try:
        recorded = yield from stage.parts.settle(store, ownership, word.event, _stored(word.event, result))
    except StoreUnavailable:
        stage.judge.seen["result_not_stored"] += 1
        return ending is Ending.RETURNED  # the value is returned, and the lease lapses
    if not recorded:
        stage.judge.seen["lease lost"] += 1
        return False
    if word.event in (Transition.COMPLETE, Transition.FAIL):
        stage.judge.answered(ownership.attempt, ownership.token, result)
        return True
    return False


def _stored(event: Transition, result: StoredResult) -> StoredResult | None:
    return None if event is Transition.RELEASE else result


def _work(stage: Stage, actor: Actor, ownership: Ownership) -> Act[Ending]:
    """The handler: perhaps long work with heartbeats, then the effect; returns how it ended."""
    effect_began = False
    try:
        yield from _long_work(stage, actor, ownership)
        mood = 1.0 if stage.calm else actor.chance()
        if mood < 0.06:
            raise Failed
        if mood < 0.12:
            return Ending.PERMANENT
        effect_began = True
        yield Ask(Message("effect", ownership.key, ownership, None, stage.parts.key_for(ownership)), _accepted)
        return Ending.COMMITTED if mood < 0.16 else Ending.RETURNED
    except Failed:
        return Ending.NOT_EXECUTED if actor.chance() < 0.5 else Ending.TRANSIENT
    except (Cancelled, Refused, StoreUnavailable):
        return Ending.TRANSIENT if effect_began else Ending.NOT_EXECUTED


def _accepted(answer: bool) -> None:
    if not answer:
        raise Refused


def _long_work(stage: Stage, actor: Actor, ownership: Ownership) -> Act[None]:
    while actor.chance() < 0.3:
        yield stage.pause(actor, 0.7)
        try:
            kept = yield from stage.parts.renew(stage.stores[actor.version], [ownership])
        except StoreUnavailable:
            continue
        if ownership not in kept:
            stage.judge.seen["lease lost in time"] += 1
            raise Failed


# ---------------------------------------------------------------- probing


def _probe(stage: Stage, actor: Actor, record: Record) -> Act[bool]:
    """Ask the probe about a record in doubt; True when it could tell, and the key is to be claimed once more.

    It answers what is true when it looks, and may then be slow, raise, die, or find nothing out.
    """
    stage.judge.seen["probed"] += 1
    mood = 1.0 if stage.calm else actor.chance()
    if mood < 0.1:
        stage.judge.seen["probe raised"] += 1
        return False
    try:
        happened = yield Ask(Message("probe", record.key, record, None, None), lambda answer: answer)
    except (Cancelled, StoreUnavailable):
        stage.judge.seen["probe got no answer"] += 1
        return False
    said = HandlerSignals()
    if mood < 0.9 or stage.calm:
        said.committed, said.not_executed = happened is True, happened is False
    answer = stage.parts.answer_of(said, f"a probe says so of {record.attempt}")
    if answer is None:
        stage.judge.seen["probe could not tell"] += 1
        return False
    event, stored = answer
    settled = yield from stage.parts.resolve(stage.stores[actor.version], record, event, stored, stage.clocks)
    stage.judge.seen["probe settled" if settled else "probe came too late"] += 1
    return True
