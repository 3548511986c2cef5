"""A fast store before a durable truth: quick replays, and nothing else that a user could tell from the truth alone."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from retrysafe import Boundary, ConfigurationError, InProgress, KeyReused, Keyring, StoredFailure, layered
from retrysafe.claims.decorator import fingerprint_of
from retrysafe.cli import main
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.procedures import NotWon
from retrysafe.protocol.records import EffectiveState
from tests.layered.conftest import Entry, Fast, Layers
from tests.proving.effort import effort

pytestmark = pytest.mark.slow


def test_a_replay_comes_from_the_fast_store_once_it_is_kept_there(layers: Layers) -> None:
    first = layers.do("k")
    assert layers.fast.entries() == [], "what nobody asked for again is not kept"
    assert layers.do("k") == first
    assert len(layers.fast.entries()) == 1
    layers.lose("k")
    assert layers.do("k") == first
    assert layers.runs == ["k"]


async def test_so_it_does_in_async_code(layers: Layers) -> None:
    first = await layers.ado("k")
    assert await layers.ado("k") == first
    layers.lose("k")
    assert await layers.ado("k") == first
    assert layers.runs == ["k"]
    await layers.boundary.aclose()


@pytest.mark.parametrize("effects", ["transactional", "external"])
def test_other_effects_are_served_too(fast: Fast, tmp_path: Path, effects: str) -> None:
    layers = Layers(fast, tmp_path, effects=effects)
    first = layers.do("k")
    assert layers.do("k") == first
    layers.lose("k")
    assert layers.do("k") == first
    layers.close()


def test_another_payload_and_a_stored_failure_are_answered_from_it(layers: Layers) -> None:
    layers.do("k")
    with layers.boundary.claim("bad") as claim:
        claim.fail(ValueError("no such account"))
    for _ in range(2):
        with pytest.raises(StoredFailure, match="no such account"):
            layers.do("bad")
    layers.do("k")
    for key in ("k", "bad"):
        layers.lose(key)
    with pytest.raises(KeyReused):
        layers.do("k", "another")
    with pytest.raises(StoredFailure, match="no such account"):
        layers.do("bad")


def test_unsettled_records_are_never_kept(layers: Layers) -> None:
    with layers.boundary.claim("k"):
        with pytest.raises(InProgress):
            layers.do("k")
        assert layers.fast.entries() == []
    with pytest.raises(ZeroDivisionError), layers.boundary.claim("released"):
        1 / 0  # noqa: B018
    layers.do("released")
    assert layers.fast.entries() == []


def test_a_claim_is_decided_by_the_truth_alone(layers: Layers) -> None:
    """The fast store loses, or never had, what the truth knows: nothing runs again."""
    first = layers.do("k")
    layers.do("k")
    layers.fast.flush()
    assert layers.do("k") == first
    assert layers.runs == ["k"]


def test_only_settled_records_are_believed(layers: Layers) -> None:
    """A record in the fast store can neither start nor stop an attempt."""
    with layers.boundary.claim("k") as claim:
        running = layers.truth("k")
        assert running is not None
        claim.not_executed()
        claim.result = "first"
    layers.plant(running)
    layers.lose("k")
    assert layers.do("k") == "k run 1"


def test_without_the_fast_store_everything_goes_on_and_it_is_left_alone(layers: Layers) -> None:
    layers.do("k")
    layers.fast.kill()
    assert layers.do("k") == layers.do("k")
    layers.do("other")
    assert layers.runs == ["k", "other"]
    assert layers.told.names["store_warning"] == 1, "after one failure it rests"
    layers.fast.start()
    layers.do("k")
    assert layers.fast.entries() == []
    layers.reconnected()
    layers.do("k")
    assert len(layers.fast.entries()) == 1


def test_it_is_asked_again_after_its_rest_and_rests_again(layers: Layers) -> None:
    layers.fast.kill()
    layers.do("k")
    layers.reconnected()
    layers.do("k")
    assert layers.told.names["store_warning"] == 2
    layers.fast.start()


def test_kept_records_end_before_their_window_does(layers: Layers) -> None:
    layers.do("k")
    layers.age(3500)
    layers.do("k")
    (entry,) = layers.fast.entries()
    record = layers.truth("k")
    assert record is not None
    left = (record.expires - record.now) // 1000
    assert 0 < entry.expires - layers.fast.client.time()[0] * 1000 <= left + 1000
    layers.age(101)
    layers.do("k")
    assert layers.runs == ["k", "k"]


def test_a_result_is_kept_for_at_most_so_long(fast: Fast, tmp_path: Path) -> None:
    layers = Layers(fast, tmp_path, at_most="10s")
    layers.do("k")
    layers.do("k")
    (entry,) = fast.entries()
    assert entry.expires - fast.client.time()[0] * 1000 <= 11_000
    layers.close()


def test_a_slow_writer_cannot_bring_back_what_was_expired(layers: Layers) -> None:
    """It read the truth before the operator changed it, and its write to the fast store arrives last."""
    layers.do("k")
    cache, truth = layers.cache, layers.truth("k")
    print_ = fingerprint_of("p")
    opened = layers.boundary.entrypoint.open("k", operation=layers.boundary.name, fingerprint=print_)
    want = opened._require_request()
    assert truth is not None
    looked = cache.look(want)
    outcome = layers.boundary.claim("k", payload="p")
    assert layers.expire("k")
    cache.keep(NotWon(Decision.REPLAY, truth), looked)
    with outcome:
        assert not outcome.replayed
        outcome.result = "again"
    assert layers.do("k") == "again"
    assert layers.do("k") == "again", "the later version is kept"


def test_an_operator_is_told_when_the_fast_store_does_not_hear_of_a_change(layers: Layers) -> None:
    layers.do("k")
    layers.do("k")
    kept = layers.fast.entries()
    layers.fast.kill()
    assert not layers.expire("k")
    layers.fast.start()
    layers.fast.restore(kept)
    layers.age(30 * 60)
    layers.reconnected()
    assert layers.do("k") == "k run 2", "after at_most the truth is asked again"


def test_unreadable_entries_are_a_miss(layers: Layers) -> None:
    first = layers.do("k")
    layers.do("k")
    (entry,) = layers.fast.entries()
    for broken in (b"[0, {}]", b"not json", b"[1, {}]", b'[1, {"state": "melted", "fingerprint": "", "result": null}]'):
        layers.fast.client.hset(entry.name.decode(), "record", broken)  # type: ignore[arg-type]
        assert layers.do("k") == first


def test_a_sweep_of_the_fast_store_mends_a_lost_expiry(layers: Layers, capsys: pytest.CaptureFixture[str]) -> None:
    first = layers.do("k")
    layers.do("k")
    (entry,) = layers.fast.entries()
    layers.fast.client.persist(entry.name.decode())
    for repaired in (1, 0):
        assert main(["sweep", "--store", layers.fast.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["repaired"] == repaired
    (mended,) = layers.fast.entries()
    assert mended.expires > 0
    assert layers.fast.client.hkeys(entry.name.decode()) == [b"version"]
    assert layers.do("k") == first, "answered by the truth"


def test_the_layers_are_checked_when_built(tmp_path: Path) -> None:
    truth = f"sqlite:///{tmp_path}/t.db"
    for fast, durable in (
        (truth, truth),
        ("redis://127.0.0.1:1", "memory://"),
        ("redis://127.0.0.1:1", layered("redis://x", truth, name="t")),
    ):
        with pytest.raises(ConfigurationError, match="layered"):
            Boundary("b", store=layered(fast, durable, name="t"))


def test_another_truth_behind_the_same_fast_store_is_another(fast: Fast, tmp_path: Path) -> None:
    """A database per tenant, staging beside production: equal keys, and not one result in common."""
    results = []
    for name in ("one", "other"):
        boundary = Boundary("shop", store=layered(fast.url, f"sqlite:///{tmp_path}/{name}.db", name=name))
        for _ in range(3):
            with boundary.claim("k") as claim:
                if not claim.replayed:
                    claim.result = name
        results.append(claim.result)
        boundary.close()
    assert results == ["one", "other"]


def test_the_truth_has_a_name() -> None:
    with pytest.raises(ConfigurationError, match="name="):
        layered("redis://x", "postgresql://y", name="")


async def test_many_duplicates_at_once_run_once(layers: Layers) -> None:
    results = await asyncio.gather(*(layers.ado("k") for _ in range(50)), return_exceptions=True)
    assert layers.runs == ["k"]
    assert {result for result in results if not isinstance(result, InProgress)} == {"k run 1"}
    await layers.boundary.aclose()


class Model:
    """A random history: what the truth says beforehand decides what a call may do."""

    def __init__(self, layers: Layers, chance: random.Random) -> None:
        self.layers = layers
        self.chance = chance
        self.kept: list[Entry] = []
        self.stale: dict[str, set[str]] = {}
        """Results that operators have expired without the fast store hearing of it, by key."""
        self.expired: dict[str, set[str]] = {}
        """Results that were expired since the fast store was last copied."""
        self.up = True
        self.counts: dict[str, int] = {}

    def step(self) -> None:
        act = self.chance.choice(
            [self.call] * 8 + [self.flush, self.copy, self.fail_over, self.partition, self.age, self.expire]
        )
        self.counts[act.__name__] = self.counts.get(act.__name__, 0) + 1
        act()

    def call(self) -> None:
        key = self.chance.choice("abc")
        record = self.layers.truth(key)
        standing = EffectiveState.ABSENT if record is None else record.effective_state
        before = len(self.layers.runs)
        result = self.layers.do(key)
        ran = len(self.layers.runs) > before
        if ran:
            assert standing in (EffectiveState.ABSENT, EffectiveState.EXPIRED, EffectiveState.FORGOTTEN), (
                "only the truth lets work run"
            )
        elif standing is EffectiveState.COMPLETED:
            assert record is not None
            assert record.result is not None
            assert record.result.body is not None
            assert result in {record.result.body.decode().strip('"'), *self.stale.get(key, ())}
        else:
            assert result in self.stale.get(key, ()), "only a change that the fast store missed may be served late"

    def flush(self) -> None:
        if self.up:
            self.layers.fast.flush()

    def copy(self) -> None:
        if self.up:
            self.kept = self.layers.fast.entries()
            self.expired = {}

    def fail_over(self) -> None:
        """To a replica that is behind: what it never heard of is not expired there."""
        if self.up:
            self.layers.fast.restore([entry for entry in self.kept if entry.expires > self._fast_now()])
            for key, results in self.expired.items():
                self.stale.setdefault(key, set()).update(results)

    def partition(self) -> None:
        self.up = not self.up
        if self.up:
            self.layers.fast.resume()
            self.layers.reconnected()
        else:
            self.layers.fast.cut_off()

    def age(self) -> None:
        self.kept = self.layers.age(self.chance.choice([60, 600, 1700, 3500]), self.kept)

    def expire(self) -> None:
        key = self.chance.choice("abc")
        record = self.layers.truth(key)
        if record is not None and record.effective_state is EffectiveState.COMPLETED:
            assert record.result is not None
            assert record.result.body is not None
            result = record.result.body.decode().strip('"')
            missed = self.expired if self.layers.expire(key) else self.stale
            missed.setdefault(key, set()).add(result)

    def _fast_now(self) -> int:
        seconds, micros = self.layers.fast.client.time()
        return int(seconds * 1000 + micros // 1000)


@pytest.mark.parametrize("seed", range(effort(4, 12)))
def test_a_random_history_shows_only_what_the_truth_allows(layers: Layers, seed: int) -> None:
    model = Model(layers, random.Random(seed))
    for _ in range(150):
        model.step()
    assert model.counts["call"] > 30


def test_an_encrypted_answer_is_encrypted_in_the_fast_store_too(fast: Fast, tmp_path: Path) -> None:
    layers = Layers(fast, tmp_path, encryption=Keyring({"k": bytes(32)}))
    first = layers.do("k")
    assert [layers.do("k") for _ in range(2)] == [first, first]
    (entry,) = layers.fast.entries()
    record = layers.fast.client.hget(entry.name, "record")
    assert isinstance(record, bytes)
    assert b"vnd.retrysafe.encrypted" in record
    assert first.encode() not in record
    layers.lose("k")
    assert layers.do("k") == first
    layers.close()
