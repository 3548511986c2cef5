"""One schedule: who takes part, then a phase with faults, then one without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from retrysafe.backends.driver import run
from retrysafe.protocol.records import EffectiveState
from retrysafe.protocol.store import OperableStore
from retrysafe.protocol.transitions import RULES, Transition
from tests.laboratory.histories import Operation
from tests.laboratory.simulation.acting import Actor, Acts, Parts, Stage
from tests.laboratory.simulation.judging import Check, Judge
from tests.laboratory.simulation.messages import WatchedCache, WatchedStore
from tests.laboratory.simulation.network import Drawn, Given, Injected, Network
from tests.laboratory.simulation.plan import LIES, PLAN, Fault, Plan
from tests.laboratory.simulation.recording import Recording
from tests.laboratory.simulation.report import EPOCH, Report
from tests.laboratory.simulation.servers import FIT, MIGRATIONS, SimulatedCache
from tests.laboratory.simulation.tending import last_sweep, migrator, operator, sweeper
from tests.laboratory.simulation.working import late_worker, worker
from tests.laboratory.simulation.world import Clock, Subject, Time, World, memory

PARTS = Parts()
PATIENCE = 60
"""The leases after the end of faults (and as long again as they lasted) until every caller has its answer."""
_ACTORS = 64


class Script(NamedTuple):
    """A schedule that was cut down: the faults that are left, and the actors that are left out."""

    faults: tuple[Injected, ...]
    without: frozenset[str] = frozenset()


def simulate(
    seed: int,
    *,
    store: OperableStore | None = None,
    plan: Plan = PLAN,
    parts: Parts = PARTS,
    subject: Callable[[Clock], Subject] = memory,
    script: Script | None = None,
    history: list[Operation] | None = None,
) -> Report:
    """Run one schedule.

    Arguments:
        seed: everything follows from it and the plan.
        store: one that makes steps for the memory executor, instead of the memory store.
        plan: what takes part and what goes wrong.
        parts: the programs; the shipping ones.
        subject: a store with an executor of its own, at the simulated time.
        script: faults to inject instead of those that the seed would draw.
        history: what is asked of the store and answered is added to it (`tests.laboratory.linearizability`).
    """
    schedule = _Schedule(seed, store, plan, parts, subject, script, recorded=history is not None)
    report = schedule.run()
    if history is not None and schedule.recording is not None:
        history += schedule.recording.operations()
    return report


class _Schedule:
    def __init__(
        self,
        seed: int,
        store: OperableStore | None,
        plan: Plan,
        parts: Parts,
        subject: Callable[[Clock], Subject],
        script: Script | None,
        *,
        recorded: bool,
    ) -> None:
        self._seed = seed
        self._script = script
        self._random = Random(seed)
        self._judge = Judge()
        self._time = time = Time(EPOCH)
        under_test = subject(time.of_the_store)
        time.quantum = under_test.quantum
        if store is not None:
            under_test = under_test._replace(store=store)
        self._asked, self._plan = plan, plan if under_test.quantum == 1 else plan.scaled(1000, under_test.quantum)
        self._judge.tolerance = _tolerance(self._plan)
        self._world = World(under_test, self._judge, time, fleet=plan.fleet)
        stores = {version: WatchedStore(under_test.store, version) for version in FIT}
        self._stage = Stage(self._plan, parts, self._judge, stores, WatchedCache(SimulatedCache()))
        self._world.stage = self._stage
        choose = Drawn(self._plan, self._random) if script is None else Given(script.faults)
        sweep = lambda: run(parts.sweep(stores[0], 100), self._world.apply)  # noqa: E731
        self.recording = Recording(lambda: time.now) if recorded else None
        self._world.recording = self.recording
        self._network = Network(self._stage, self._world, time, choose, sweep, self.recording)
        self._stage.time = time
        self._stage.hang_up = self._world.schema.hang_up
        self._stage.restart = lambda actor: self._network.restart(actor, 1)
        self._cast: list[str] = []
        self._optional: list[str] = []
        self._entered = 0

    # ------------------------------------------------------------ the course of it

    def run(self) -> Report:
        """With faults up to the horizon, then without them until everybody is answered and all is settled."""
        plan, stage, network = self._plan, self._stage, self._network
        self._enter_all()
        network.play_until(EPOCH + plan.horizon)
        stage.calm = True
        calm_since = EPOCH + plan.horizon
        self._enter_late_workers("z", stage.effects)
        answered = self._play_to_the_end()
        answered_after = self._time.now - calm_since if answered else None
        network.drain()
        self._settle_stragglers()
        if plan.sweeper and not stage.open:
            self._sweep_up()
        self._judge_liveness()
        return Report(
            self._seed,
            self._asked,
            tuple(self._cast),
            tuple(network.injected),
            tuple(self._optional),
            frozenset() if self._script is None else self._script.without,
            self._script is not None,
            tuple(self._judge.violations),
            network.counts,
            self._judge.seen,
            self._world.log,
            answered_after,
        )

    def _enter_all(self) -> None:
        plan, stage, chance = self._plan, self._stage, self._random.random
        keys = [b"key%d" % number for number in range(plan.keys)]
        for key in keys:
            stage.effects[key] = plan.effects[int(chance() * len(plan.effects))]
            self._cast.append(f"{key.decode()}: {stage.effects[key]}")
        if plan.fleet:
            stage.fingerprints_differ = chance() < 0.3
            self._cast.append(f"fingerprints differ between versions: {stage.fingerprints_differ}")
        self._optional = self._named()
        for number in range(plan.workers):
            self._enter_worker("abcdefghijklmnop"[number], keys[number % len(keys)])
        self._enter("op", lambda actor: operator(stage, actor), counted=False)
        if plan.sweeper:
            for name in ("s1", "s2"):
                self._enter(name, lambda actor: sweeper(stage, actor), counted=False)
        if plan.fleet:
            for name in ("m1", "m2"):
                self._enter(name, lambda actor: migrator(stage, actor), version=2)

    def _named(self) -> list[str]:
        plan = self._plan
        names = [*"abcdefghijklmnop"[: plan.workers], "op"]
        return [*names, *(("s1", "s2") if plan.sweeper else ()), *(("m1",) if plan.fleet else ())]

    def _enter_worker(self, name: str, key: bytes) -> None:
        plan, chance = self._plan, self._random.random
        payload = b"other" if chance() < plan.intruder else b"payload"
        calls = 1 if chance() < 0.5 else 2
        version = 1 + (plan.fleet and chance() < 0.3)
        probes = bool(plan.probes) and chance() < plan.probes
        begin = lambda actor: worker(self._stage, actor, key, payload, calls)  # noqa: E731
        actor = self._enter(name, begin, version=version)
        actor.probes, actor.deployed = probes, plan.fleet
        said = f"{name} works on {key.decode()} with {payload.decode()!r}, {calls} call{'s' if calls > 1 else ''}"
        said += f", version {version}" if plan.fleet else ""
        self._cast.append(said + (", with a probe" if probes else ""))

    def _enter_late_workers(self, name: str, keys: Sequence[bytes] | dict[bytes, Any]) -> None:
        for number, key in enumerate(keys):
            begin = lambda actor, key=key: late_worker(self._stage, actor, key)  # noqa: E731
            self._enter(f"{name}{number}", begin, version=2 if self._plan.fleet else 1)

    def _enter(self, name: str, begin: Callable[[Actor], Acts], *, counted: bool = True, version: int = 1) -> Actor:
        self._entered += 1
        actor = Actor(name, self._seed * _ACTORS + self._entered, begin, counted=counted)
        actor.version = version
        if self._script is None or name not in self._script.without:
            self._network.enter(actor)
        return actor

    def _play_to_the_end(self) -> bool:
        """Play until all are answered, and tell whether that was in time."""
        limit = self._plan.horizon + PATIENCE * self._plan.clocks.lease
        self._network.play_until(self._time.now + limit)
        if self._stage.open:
            self._judge.broken(Check.STUCK, f"{self._stage.open} callers still wait for an answer")
        return not self._stage.open

    def _settle_stragglers(self) -> None:
        """Settle keys that late messages have left, which takes another retry, and an operator."""
        keys = [key for key, record in self._world.books.all().items() if _is_open(record.state.value)]
        if keys and not self._stage.open:
            self._enter_late_workers("y", keys)
            self._enter("oy", lambda actor: operator(self._stage, actor), counted=False)
            self._play_to_the_end()
            self._network.drain()

    def _sweep_up(self) -> None:
        self._enter("sz", lambda actor: last_sweep(self._stage, actor))
        self._play_to_the_end()

    # ------------------------------------------------------------ the end

    def _judge_liveness(self) -> None:
        records = self._world.books.all()
        for record in records.values():
            if _is_open(record.state.value):
                self._judge.broken(Check.IN_DOUBT, f"{record.key.decode()} is {record.state.value} by {record.attempt}")
            elif self._plan.sweeper and not self._stage.open:
                standing = record.effective_state_at(self._time.of_the_store())
                if standing in RULES[Transition.SWEEP].sources or standing is EffectiveState.FORGOTTEN:
                    self._judge.broken(Check.SWEPT, f"{record.key.decode()} is still there")
        if self._plan.fleet and self._world.schema.version != MIGRATIONS[-1].version:
            left_out = self._script is not None and {"m1", "m2"} <= self._script.without
            if not left_out:
                self._judge.broken(Check.CONTRACTED, f"the schema is of version {self._world.schema.version}")


def _is_open(state: str) -> bool:
    return state in ("running", "unknown")


def _tolerance(plan: Plan) -> int | None:
    """Return the largest error of a cache about the end of a window: as far as the store's clock can jump."""
    if any(fault in plan.faults for fault in LIES):
        return None
    return 2 * plan.skew if Fault.CLOCK_JUMPED in plan.faults else plan.quantum - 1
