"""Redis killed in mid-run, and failed over to a replica: what is lost is what the guide says. FAULTS 36-38, 18, 34."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, LeaseLost, StoreUnavailable, current
from retrysafe.backends.redis import client as executor
from retrysafe.backends.redis.store import RedisStore
from retrysafe.backends.registry import connect
from tests.conftest import absent
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, NOT_NOW, ROOT, Bank, Told, again, redis_records, seeded, until
from tests.faults.redis_servers import FailoverSet, Server, installed
from tests.tables import each_row

pytestmark = pytest.mark.slow

KEYS = [f"order-{i}" for i in range(30)]
DOCS = ROOT / "docs"
_CAPABLE = RedisStore.capabilities


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts servers with settings of their own."""
    if not installed():
        absent("no redis-server to start")
    servers: list[Server] = []

    def one(*settings: str) -> Server:
        servers.append(Server(*settings))
        return servers[-1]

    yield one
    for server in servers:
        server.thaw()
        server.close()


@pytest.fixture
def failover(serve: Callable[..., Server]) -> Iterator[FailoverSet]:
    """A master with a replica and a Sentinel."""
    made = FailoverSet()
    yield made
    made.close()


class Shop:
    """Charges at a bank through a boundary, and what its callers were answered."""

    def __init__(self, boundary: Boundary, bank: Bank) -> None:
        self.bank = bank
        self.ran: list[str] = []
        self.answers: dict[str, str] = {}
        self.charge = boundary.once(key="key", operation="charge")(self._charge)

    def _charge(self, key: str) -> str:
        self.ran.append(key)
        return self.bank.charge(current().key_for("bank"))

    def work(self, keys: list[str]) -> None:
        """Charge every key, again and again until it is answered."""
        while keys:
            key = keys.pop(0)
            try:
                self.answers[key] = self.charge(key)
            except NOT_NOW:
                keys.append(key)


def _run_over_kills(server: Server, shop: Shop, kills: int) -> None:
    """Two workers charge every key while the server is killed and started again."""
    chance = seeded("redis kill")
    workers = [threading.Thread(target=shop.work, args=(KEYS[i::2],)) for i in range(2)]
    for one in workers:
        one.start()
    for _ in range(kills):
        goal = len(shop.ran) + chance.randrange(3, 7)
        until(lambda goal=goal: len(shop.ran) >= goal or not any(one.is_alive() for one in workers))  # type: ignore[misc]
        server.kill()
        server.start()
    for one in workers:
        one.join(DEADLINE)
        assert not one.is_alive()


def test_kills_with_appendfsync_always_lose_nothing(serve: Callable[..., Server], make: Making, bank: Bank) -> None:
    server = serve("--appendonly", "yes", "--appendfsync", "always")
    boundary = make(server.url, lease="0.5s")
    shop = Shop(boundary, bank)
    _run_over_kills(server, shop, kills=4)
    assert sorted(shop.answers) == sorted(KEYS)
    assert sorted(shop.answers.values()) == sorted(bank.charges.values())
    server.kill()
    server.start()
    ran = len(shop.ran)
    assert {key: again(partial(shop.charge, key)) for key in KEYS} == shop.answers
    unrecorded = {key for key in KEYS if shop.ran.count(key) > 1}
    assert len(shop.ran) - ran <= len(unrecorded), "an answer that was acknowledged was lost"


def test_a_completion_that_was_acknowledged_survives_a_kill(serve: Callable[..., Server], make: Making) -> None:
    """38: with everysec too: what a killed server has written is in the system's hands, and only that can lose it."""
    for fsync in ("always", "everysec"):
        server = serve("--appendonly", "yes", "--appendfsync", fsync)
        boundary, told = make(server.url, name=fsync, shared=True), Told()
        for key in KEYS:
            with boundary.claim(key) as claim:
                claim.result = key
        server.hand_over_its_log()
        server.kill()
        server.start()
        assert sum(record.state.value == "completed" for record in redis_records(server.url, fsync)) == len(KEYS)
        again = Boundary(fsync, store=server.url, observers=[told], shared=True)
        for key in KEYS:
            with again.claim(key) as claim:
                assert (claim.replayed, claim.result) == (True, key)
        again.close()


@pytest.mark.fault(38)
@pytest.mark.parametrize("effects", ["keyed", "external"])
def test_without_persistence_a_kill_forgets_everything(
    effects: str, serve: Callable[..., Server], make: Making, bank: Bank, told: Told
) -> None:
    """38: keyed effects still happen once; external ones twice, as the guide says."""
    server = serve("--appendonly", "no")
    boundary = make(server.url, effects=effects)
    shop = Shop(boundary, bank)
    first = {key: shop.charge(key) for key in KEYS}
    server.kill()
    server.start()
    assert redis_records(server.url, boundary.name) == []
    assert {key: shop.charge(key) for key in KEYS} == first, "the bank knows the derived keys"
    assert sorted(shop.ran) == sorted(KEYS * 2)
    assert len(bank.charges) == len(KEYS)
    assert told.names["store_warning"] == 1


@pytest.mark.fault(38)
def test_a_loss_of_power_with_everysec_forgets_what_was_not_synced(
    serve: Callable[..., Server], make: Making, bank: Bank
) -> None:
    """38: the window that the guide names. The disk is left as it was when it was last synchronised."""
    server = serve("--appendonly", "yes", "--appendfsync", "everysec")
    boundary = make(server.url)
    shop = Shop(boundary, bank)
    synced = shop.charge("synced")
    (log,) = (server.home / "appendonlydir").glob("*.incr.aof")
    server.hand_over_its_log()
    size = log.stat().st_size
    lost = shop.charge("within the last second")
    server.hand_over_its_log()
    server.kill()
    assert log.stat().st_size > size
    os.truncate(log, size)
    server.start()
    assert again(partial(shop.charge, "synced")) == synced
    assert shop.ran == ["synced", "within the last second"]
    assert shop.charge("within the last second") == lost, "the bank knows the derived key"
    assert shop.ran == ["synced", "within the last second", "within the last second"]
    assert (len(bank.charges), sorted(bank.requests.values())) == (2, [1, 2])


@pytest.mark.fault(37, 38)
@each_row(
    ("page", "said"),
    [
        ("how-to/run-on-redis-or-valkey.md", "failover to a replica, also in a cluster"),
        ("explanation/when-code-can-still-run-twice.md", "loses power, `everysec`"),
        (
            "explanation/which-store.md",
            "a failover that loses a claim: another attempt may run while the first one does",
        ),
        ("explanation/which-store.md", "a failover that loses a completion: the operation runs again"),
        ("explanation/which-store.md", "a loss of power with appendfsync everysec"),
        ("explanation/which-store.md", "with everysec, after a loss of power all but the last second or two"),
    ],
    ids=["failover", "power", "lost claim", "lost completion", "everysec", "durability"],
)
def test_losses_of_these_tests_are_documented(page: str, said: str) -> None:
    """37, 38."""
    assert said in (DOCS / page).read_text(encoding="utf-8")
    assert page != "explanation/which-store.md" or any(
        said in text for text in (_CAPABLE.durability, *_CAPABLE.cannot_survive)
    )


# ---------------------------------------------------------------- failover


def test_replicated_claims_survive_a_failover(failover: FailoverSet, make: Making, bank: Bank) -> None:
    shop = Shop(make(failover.url), bank)
    first = {key: shop.charge(key) for key in KEYS}
    failover.let_the_replica_catch_up()
    failover.fail_over()
    assert {key: again(partial(shop.charge, key)) for key in KEYS} == first
    assert sorted(shop.ran) == sorted(KEYS)


@pytest.mark.fault(37)
def test_a_failover_that_loses_a_claim_lets_two_attempts_run(
    failover: FailoverSet, make: Making, bank: Bank, told: Told
) -> None:
    """37: the receiver recognises the derived key, and the first attempt cannot store its result."""
    boundary = make(failover.url, lease="60s")
    receipts: list[str] = []
    with boundary.claim("before") as claim:
        claim.result = "replicated"
    failover.let_the_replica_catch_up()
    failover.cut_off_the_replica()
    with pytest.raises(LeaseLost):  # noqa: SIM117 - what the first attempt is told at its end
        with boundary.claim("order") as first:
            receipts.append(bank.charge(first.key_for("bank")))
            failover.fail_over()
            receipts.append(again(partial(_second_attempt, boundary, bank)))
            first.result = receipts[0]
    assert receipts[0] == receipts[1]
    assert list(bank.requests.values()) == [2]
    assert len(bank.charges) == 1
    assert told.names["lease_lost"] >= 1
    with boundary.claim("order") as claim:
        assert (claim.replayed, claim.result) == (True, receipts[0])
    with boundary.claim("before") as claim:
        assert (claim.replayed, claim.result) == (True, "replicated")


def _second_attempt(boundary: Boundary, bank: Bank) -> str:
    receipts: list[str] = []

    def attempt() -> None:  # in a thread of its own: not inside the first attempt
        try:
            with boundary.claim("order") as claim:
                assert not claim.replayed, "the claim of the first attempt was not lost"
                receipts.append(bank.charge(claim.key_for("bank")))
                claim.result = receipts[0]
        except StoreUnavailable:
            return

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(DEADLINE)
    if not receipts:
        raise StoreUnavailable("not yet")
    return receipts[0]


@pytest.mark.fault(37)
@pytest.mark.parametrize("effects", ["keyed", "external"])
def test_a_failover_that_loses_a_completion_runs_it_again(
    effects: str, failover: FailoverSet, make: Making, bank: Bank
) -> None:
    """37: an external effect happens twice, for the record that knew of it is gone; a keyed one is recognised."""
    boundary = make(failover.url, effects=effects)
    shop = Shop(boundary, bank)
    failover.cut_off_the_replica()
    receipt = shop.charge("order")
    failover.fail_over()
    assert again(partial(shop.charge, "order")) == receipt
    assert shop.ran == ["order", "order"]
    assert list(bank.requests.values()) == [2]
    assert len(bank.charges) == 1


# ---------------------------------------------------------------- how the server is set up


@pytest.mark.fault(36)
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_may_evict_records_is_refused(
    policy: str, serve: Callable[..., Server], make: Making, told: Told
) -> None:
    """36: before the handler, and no longer once the setting is right."""
    server = serve("--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", policy)
    boundary = make(server.url)
    with pytest.raises(ConfigurationError, match=f"maxmemory-policy is {policy}.*noeviction"), boundary.claim("key"):
        raise AssertionError("the handler was run")
    server.client.config_set("maxmemory-policy", "noeviction")
    with boundary.claim("key") as claim:
        claim.result = 1
    assert told.names["store_warning"] == 0


@pytest.mark.fault(36)
async def test_async_code_refuses_it_too(serve: Callable[..., Server], make: Making) -> None:
    server = serve("--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    boundary = make(server.url)
    with pytest.raises(ConfigurationError, match="maxmemory-policy"):
        async with boundary.claim("key"):
            raise AssertionError("the handler was run")
    await boundary.aclose()


@pytest.mark.fault(36, 38)
@pytest.mark.parametrize(
    ("settings", "setting", "text"),
    [
        (("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"), "eviction", "once maxmemory is set"),
        (("--appendonly", "no"), "persistence", "forgets everything"),
        (("--appendonly", "no", "--save", "60 1000"), "persistence", "Snapshots only"),
        (("--appendonly", "yes", "--appendfsync", "no"), "persistence", "appendfsync no"),
    ],
)
def test_a_weak_setting_is_warned_of_once(
    settings: tuple[str, ...], setting: str, text: str, serve: Callable[..., Server], make: Making, told: Told
) -> None:
    boundary = make(serve(*settings).url)
    for key in ("one", "two"):
        with boundary.claim(key) as claim:
            claim.result = 1
    (warning,) = [occurrence for occurrence in told.occurrences if occurrence.name == "store_warning"]
    assert warning.fields["setting"] == setting
    assert text in warning.fields["text"]


def test_a_server_whose_settings_are_hidden_is_warned_of(
    serve: Callable[..., Server], make: Making, told: Told
) -> None:
    server = serve("--appendonly", "yes")
    server.client.execute_command("ACL", "SETUSER", "default", "-config", "-publish")
    boundary = make(server.url)
    with boundary.claim("key") as claim:
        claim.result = 1
    with boundary.claim("key") as claim:
        assert claim.replayed, "a wake-up that is forbidden has undone the completion"
    (warning,) = [occurrence for occurrence in told.occurrences if occurrence.name == "store_warning"]
    assert "does not tell its appendfsync" in warning.fields["text"]
    assert told.names["settle_deferred"] == 0


def test_a_replica_is_refused(serve: Callable[..., Server], make: Making) -> None:
    master = serve("--appendonly", "yes")
    replica = serve("--appendonly", "yes", "--replicaof", "127.0.0.1", str(master.port))
    boundary = make(replica.url)
    with pytest.raises(ConfigurationError, match="is a slave"), boundary.claim("key"):
        raise AssertionError("the handler was run")


@pytest.mark.fault(84)
def test_a_full_server_refuses_claims_and_forgets_none(serve: Callable[..., Server], make: Making) -> None:
    """84."""
    server = serve("--appendonly", "yes")
    boundary = make(server.url)
    with boundary.claim("key") as claim:
        claim.result = "kept"
    server.client.config_set("maxmemory", "1mb")
    with pytest.raises(StoreUnavailable, match="maxmemory"), boundary.claim("another"):
        raise AssertionError("the handler was run")
    with boundary.claim("key") as claim:
        assert claim.replayed
    server.client.config_set("maxmemory", "0")
    with boundary.claim("another") as claim:
        claim.result = "now"


# ---------------------------------------------------------------- silence


def test_a_silent_server_does_not_hang_a_claim(serve: Callable[..., Server], make: Making) -> None:
    """18."""
    server = serve("--appendonly", "yes")
    boundary = make(f"{server.url}?socket_timeout=2&socket_connect_timeout=2")
    with boundary.claim("key") as claim:
        claim.result = 1
    server.freeze()
    with pytest.raises(StoreUnavailable), boundary.claim("another"):
        raise AssertionError("the handler was run")
    server.thaw()
    with boundary.claim("key") as claim:
        assert claim.replayed


async def test_a_silent_server_does_not_hang_a_task(serve: Callable[..., Server], make: Making) -> None:
    server = serve("--appendonly", "yes")
    boundary = make(f"{server.url}?socket_timeout=2&socket_connect_timeout=2")
    async with boundary.claim("key") as claim:
        claim.result = 1
    server.freeze()
    with pytest.raises(StoreUnavailable):
        async with boundary.claim("another"):
            raise AssertionError("the handler was run")
    server.thaw()
    async with boundary.claim("key") as claim:
        assert claim.replayed
    await boundary.aclose()


def test_an_exhausted_pool_is_refused_before_the_claim(
    serve: Callable[..., Server], make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """34."""
    monkeypatch.setattr(executor, "CHECKOUT", 0.05)
    server = serve("--appendonly", "yes")
    boundary_url = f"{server.url}?max_connections=1"
    boundary = make(boundary_url)
    with boundary.claim("key") as claim:
        claim.result = 1
    client: Any = connect(boundary_url).client()
    with client._turn():
        with pytest.raises(StoreUnavailable, match="no connection became free") as caught, boundary.claim("refused"):
            raise AssertionError("the handler was run")
        assert caught.value.unsent
    assert len(redis_records(server.url, boundary.name)) == 1, "the refused claim was sent"
