"""The shop's own tests, as users of Django write them. Run by tests/django/test_project.py on every database."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase

from retrysafe import ConfigurationError, InProgress, OutcomeUnknown
from tests.django.shop import views
from tests.django.shop.models import Order

SQLITE = connection.vendor == "sqlite"


class Posting:
    """Posts as a client that retries does."""

    client: Any

    def post(self, view: str, key: str, body: Any) -> Any:
        headers = {"Idempotency-Key": key}
        return self.client.post(f"/{view}", body, content_type="application/json", headers=headers)


class Views(Posting):
    """The same tests for a TestCase and a TransactionTestCase. Every test uses the same key, and starts anew."""

    def setUp(self) -> None:
        views.charged.clear()
        views.mails.clear()

    def test_joined(self) -> None:
        first, second = self.post("joined", "k", '"lamp"'), self.post("joined", "k", '"lamp"')
        assert first.json() == second.json() == {"id": Order.objects.get().pk, "item": "lamp"}

    def test_own(self) -> None:
        first, second = self.post("own", "k", '"sofa"'), self.post("own", "k", '"sofa"')
        assert first.json() == second.json() == {"id": Order.objects.get().pk, "item": "sofa"}

    def test_leased(self) -> None:
        first, second = self.post("paid", "k", "7"), self.post("paid", "k", "7")
        assert first.json() == second.json() == {"amount": 7}
        assert len(views.charged) == 1

    def test_failing_view_leaves_nothing(self) -> None:
        for view in ("joined", "own"):
            for _ in range(2):
                with pytest.raises(ValueError, match="broken"):
                    self.post(view, "k", '"broken"')
        assert not Order.objects.exists()
        assert self.post("own", "k", '"lamp"').json()["item"] == "lamp"

    def test_own_inside_an_atomic_request_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="Pass tx='default'"):
            self.post("inside", "k", '"lamp"')
        assert not Order.objects.exists()

    def test_leased_inside_an_atomic_request(self) -> None:
        kinds = (ConfigurationError, ZeroDivisionError)
        with pytest.raises(kinds[not SQLITE]):
            self.post("paid_inside", "k", "7")
        assert not Order.objects.exists()
        assert len(views.charged) == (0 if SQLITE else 1)

    def test_claims_on_another_alias_than_the_work(self) -> None:
        claim = views.elsewhere.claim("k", tx="default")
        with pytest.raises(ConfigurationError, match="cannot commit together"), transaction.atomic(), claim:
            pass
        with transaction.atomic(using="other"), views.elsewhere.claim("k", tx="other") as claim:
            claim.result = 1


class InTestCase(Views, TestCase):
    """Inside a transaction that is rolled back."""

    databases = ("default", "other")

    def test_hooks_can_be_captured(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as hooks:
            self.post("own", "k", '"lamp"')
            self.post("own", "k", '"lamp"')
        assert (len(hooks), views.mails) == (1, ["lamp"])

    def test_leased_claims_go_with_the_test(self) -> None:
        self.post("paid", "k", "7")
        assert connections["default"].in_atomic_block
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT state FROM retrysafe_records")
            assert list(cursor.fetchall()) == [("completed",)]


class InTransactionTestCase(Views, TransactionTestCase):
    """With real commits; the tables are emptied after every test."""

    databases = ("default", "other")

    def test_hooks_run_once(self) -> None:
        for _ in range(2):
            self.post("own", "k", '"lamp"')
            self.post("joined", "l", '"sofa"')
        assert views.mails == ["lamp", "sofa"]

    def test_request_that_rolls_back_keeps_the_leased_record(self) -> None:
        if SQLITE:
            return  # refused there
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                self.post("paid_inside", "k", "7")
        assert len(views.charged) == 1

    def test_inner_block_that_rolls_back_takes_its_claim_along(self) -> None:
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                views.place("k", "lamp", tx="default")
                raise ZeroDivisionError
            Order.objects.create(item="outer")
        assert [order.item for order in Order.objects.all()] == ["outer"]
        assert views.place("k", "lamp")["item"] == "lamp"
        assert Order.objects.count() == 2

    def test_error_that_the_block_swallows_is_unknown(self) -> None:
        with transaction.atomic(), pytest.raises(ValueError, match="broken"):
            views.place("k", "broken", tx="default")
        assert Order.objects.count() == 1
        with pytest.raises(OutcomeUnknown):
            views.place("k", "broken")

    def test_no_pending_migrations(self) -> None:
        call_command("makemigrations", check=True, dry_run=True, stdout=io.StringIO())

    def test_flush_forgets_keys(self) -> None:
        views.place("k", "lamp")
        call_command("flush", interactive=False, stdout=io.StringIO())
        views.place("k", "lamp")
        assert Order.objects.count() == 1

    def test_threads(self) -> None:
        if connection.vendor != "postgresql":
            return  # threads on one SQLite file or memory are told that it is locked
        results: list[Any] = []
        start = threading.Barrier(6)

        def one() -> None:
            start.wait(60)
            while True:
                try:
                    results.append(views.place("k", "lamp"))
                    break
                except InProgress:
                    continue
            connections.close_all()

        threads = [threading.Thread(target=one) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 6
        assert all(result == results[0] for result in results)
        assert Order.objects.count() == 1
