"""Gateways and services that are killed or stopped in the middle of a request: once, or honestly unknown."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from retrysafe.testing.time_travel import lapse
from tests.gateway.processes import GatewayProcess, Service
from tests.gateway.upstreams import Answer, Front
from tests.stores.ageing import do_at

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("node")]


class Shop:
    """A ledger, a store, and whatever runs at the moment."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger"
        self.store = f"sqlite:///{folder / 'keys.db'}"
        self.file = folder / "gateway.toml"
        self.pool = ThreadPoolExecutor(4)

    def gateway(self, service: Service, effects: str, *options: str, grace: str = "20s") -> GatewayProcess:
        self.file.write_text(f'principal = "shared"\ngrace = "{grace}"\n[defaults]\neffects = "{effects}"\n')
        return GatewayProcess("--upstream", service.url, "--store", self.store, "--config", str(self.file), *options)

    def lines(self) -> list[str]:
        """The payments that were made."""
        return self.ledger.read_text().split("\n")[:-1] if self.ledger.exists() else []

    def begin(self, gateway: GatewayProcess, order: str) -> Future[Answer]:
        """Pay, in a thread."""
        return self.pool.submit(self.pay, gateway, order)

    def pay(self, gateway: GatewayProcess, order: str) -> Answer:
        front = Front(gateway.url, None)  # type: ignore[arg-type]
        return front.ask(path="/payments", key=order, body=b'{"order":"%b"}' % order.encode(), Host="shop.example")

    def let_leases_lapse(self) -> None:
        """Let leases lapse: killed processes renew no more, and the test need not wait."""
        do_at(self.store, lapse)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.pool.shutdown()


def all_serving(gateway: GatewayProcess) -> list[int]:
    """The workers, once each of them has answered a request."""
    waiting = set(gateway.workers)
    while waiting:
        live = Front(gateway.url, None).ask("GET", "/-/health/live")  # type: ignore[arg-type]
        waiting.discard(json.loads(live.body)["worker"])
    return gateway.workers


def open_gates(service: Service, order: str) -> None:
    service.control(f"/release?id={order}")
    service.control(f"/release?id={order}%20answer")


@pytest.mark.fault(3)
@pytest.mark.fault(5)
@pytest.mark.parametrize(
    ("effects", "paid"), [("external", False), ("keyed", True)], ids=["before it was paid", "after it was paid"]
)
def test_every_worker_is_killed_in_mid_request(shop: Shop, effects: str, paid: bool) -> None:
    with Service(shop.ledger, recognises=True) as service, shop.gateway(service, effects, "--workers", "2") as gateway:
        first = shop.begin(gateway, "gated-1")
        service.until("began gated-1")
        if paid:
            service.control("/release?id=gated-1")
            service.until("paid gated-1")
        for pid in all_serving(gateway):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises((OSError, http.client.HTTPException)):
            first.result()
        open_gates(service, "gated-1")
        if not paid:
            service.until("paid gated-1")  # the service goes on with what it was sent
        assert shop.pay(gateway, "gated-1").code == "in-progress", "as far as anybody knows"
        shop.let_leases_lapse()
        retried = shop.pay(gateway, "gated-1")
        if effects == "external":
            assert retried.code == "outcome-unknown"
            assert shop.pay(gateway, "gated-1").code == "outcome-unknown"
        else:
            assert (retried.status, retried.replayed) == (201, False)
            assert shop.pay(gateway, "gated-1").replayed
        assert len(shop.lines()) == 1, "once"


@pytest.mark.parametrize("effects", ["keyed", "external"])
@pytest.mark.parametrize("paid", [False, True], ids=["before it was paid", "after it was paid"])
def test_the_service_is_killed_in_mid_request(shop: Shop, effects: str, paid: bool) -> None:
    with Service(shop.ledger, recognises=True) as service, shop.gateway(service, effects) as gateway:
        first = shop.begin(gateway, "gated-1")
        service.until("began gated-1")
        if paid:
            service.control("/release?id=gated-1")
            service.until("paid gated-1")
        service.kill()
        lost = first.result()
        assert (lost.status, lost.code) == (502, "upstream-lost")
        assert shop.pay(gateway, "order-2").code == "upstream-unavailable"
        with Service(shop.ledger, service.port, recognises=True) as revived:
            open_gates(revived, "gated-1")
            retried = shop.pay(gateway, "gated-1")
            assert shop.pay(gateway, "order-2").status == 201, "what was not sent is not unknown"
        made = [line for line in shop.lines() if line.startswith("gated-1 ")]
        if effects == "external":
            assert retried.code == "outcome-unknown"
            assert len(made) == paid
        else:
            assert (retried.status, len(made)) == (201, 1)


def test_requests_under_way_when_the_gateway_stops_come_to_their_end(shop: Shop) -> None:
    with Service(shop.ledger) as service:
        gateway = shop.gateway(service, "external", "--workers", "2")
        first = shop.begin(gateway, "gated-1")
        service.until("began gated-1")
        with _stopping(gateway) as code:
            _until_refused(gateway)
            open_gates(service, "gated-1")
            assert first.result().status == 201
        assert code.result() == 0, gateway.errors
        with shop.gateway(service, "external") as next_one:
            assert shop.pay(next_one, "gated-1").replayed
        assert len(shop.lines()) == 1


@pytest.mark.parametrize(("effects", "code"), [("external", "outcome-unknown"), ("keyed", None)])
def test_requests_cut_after_the_grace_are_recorded_at_once(shop: Shop, effects: str, code: str | None) -> None:
    with Service(shop.ledger, recognises=True) as service:
        gateway = shop.gateway(service, effects, grace="1s")
        first = shop.begin(gateway, "gated-1")
        service.until("began gated-1")
        assert gateway.stop() == 0, gateway.errors
        cut = first.result()
        assert (cut.status, cut.code, cut.error) == (503, "upstream-lost", "gateway; error=proxy_internal_error")
        open_gates(service, "gated-1")
        with shop.gateway(service, effects) as next_one:
            retried = shop.pay(next_one, "gated-1")
            assert (retried.status, code) == (201, None) or retried.code == code, "without waiting for a lease"
        assert len(shop.lines()) == 1


@contextmanager
def _stopping(gateway: GatewayProcess) -> Iterator[Future[int]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(gateway.stop)


def _until_refused(gateway: GatewayProcess) -> None:
    """Until no connection is accepted any more, by anybody, although a request is still running."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", gateway.port), timeout=60).close()
        except ConnectionRefusedError:
            return
        except OSError:  # cut while it was being made
            continue
        threading.Event().wait(0.02)
    raise AssertionError("connections are still taken, and nobody serves them")


def test_metrics_of_all_workers_are_added_up_on_a_port_of_their_own(shop: Shop) -> None:
    with (
        Service(shop.ledger) as service,
        shop.gateway(service, "external", "--workers", "2", "--admin", "127.0.0.1:0") as gateway,
    ):
        admin = Front(gateway.until("admin"), None)  # type: ignore[arg-type]
        barrier = threading.Barrier(4)

        def pay(number: int) -> int:
            barrier.wait(60)
            return shop.pay(gateway, f"order-{number}").status

        assert list(shop.pool.map(pay, range(4))) == [201] * 4
        assert shop.pay(gateway, "order-1").replayed
        assert Front(gateway.url, None).ask("GET", "/-/metrics").status == 200, "is the service's"  # type: ignore[arg-type]
        counted = admin.ask("GET", "/metrics").body.decode()
        assert admin.ask("GET", "/-/health/ready").status == 200
    claimed = 'retrysafe_boundary="gateway",retrysafe_operation="http"'
    assert f'retrysafe_attempts_total{{{claimed},retrysafe_outcome="completed"}} 4.0' in counted
    assert 'retrysafe_gateway_requests_total{answered_by="record",route="/**",status="201"} 1.0' in counted
    assert 'retrysafe_gateway_requests_total{answered_by="upstream",route="/**",status="201"} 4.0' in counted
