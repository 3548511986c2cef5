"""The staff's view of keys in the admin, and their rights. Run by tests/office/test_office.py on every database."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client, TransactionTestCase, override_settings
from django.utils.html import escape
from werkzeug.test import Client as WsgiClient

from retrysafe import Boundary, OutcomeUnknown, StoredFailure
from retrysafe.admin.operator import Operator
from retrysafe.admin.selection import STATES
from retrysafe.django.admin import VERBS, match_reported
from retrysafe.django.models import Record
from retrysafe.http.wsgi import IdempotencyMiddleware
from retrysafe.protocol.records import EffectiveState

NOW = 1_000_000
LIST = "/admin/retrysafe/record/"


class Keys(TransactionTestCase):
    """A store with keys, and staff with rights."""

    def setUp(self) -> None:
        self.transfers = Boundary("transfers", store="default", effects="external", observers=())
        self.addCleanup(self.transfers.close)

    def unknown(self, key: str, **named: Any) -> str:
        """The hash of a new key whose outcome is unknown."""
        with pytest.raises(TimeoutError), self.transfers.claim(key, payload={"to": "x"}, **named):
            raise TimeoutError
        with Operator("default", observers=()) as operator:
            return operator.hash_of(key, boundary="transfers", **named).hex()

    def completed(self, key: str, result: Any = "done") -> str:
        """The hash of a new key that is completed."""
        with self.transfers.claim(key, payload={"to": "x"}) as claim:
            claim.result = result
        with Operator("default", observers=()) as operator:
            return operator.hash_of(key, boundary="transfers").hex()

    def retry(self, key: str) -> Any:
        """Return the answer to a retry, or "again" if it runs."""
        with self.transfers.claim(key, payload={"to": "x"}) as claim:
            if not claim.replayed:
                claim.result = "again"
            return claim.result

    def staff(self, name: str, *rights: str) -> Client:
        """A member of staff with these rights, logged in."""
        user = User.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=[f"{right}_record" for right in rights]))
        client = Client()
        client.force_login(user)
        return client

    def preview(self, client: Client, verb: str, *digits: str) -> Any:
        """The page that asks before an action."""
        return client.post(LIST, {"action": verb, "_selected_action": digits}, headers={"host": "testserver"})

    def settle(self, client: Client, verb: str, *digits: str, **fields: str) -> Any:
        """Choose an action for keys, and answer what its page asks."""
        page = self.preview(client, verb, *digits)
        return self.confirm(client, verb, page, *digits, **fields)

    def confirm(self, client: Client, verb: str, page: Any, *digits: str, **fields: str) -> Any:
        """Answer what the page of an action asks."""
        seen = re.findall(r'name="seen" value="([^"]+)"', page.content.decode())
        fields = {"reason": "ticket 7", **fields}
        given = {"action": verb, "_selected_action": digits, "seen": seen, "confirmed": "yes", **fields}
        return client.post(LIST, given, follow=True)

    def state(self, digits: str) -> str:
        with Operator("default", observers=()) as operator:
            record = operator.show(bytes.fromhex(digits))
        assert record is not None
        return record.reported_state.value


class Looking(Keys):
    """The shown fields, and the users that see them."""

    def test_staff_without_the_right_see_nothing(self) -> None:
        digits = self.unknown("K")
        nobody, anybody = self.staff("nobody"), Client()
        assert nobody.get(LIST).status_code == 403
        assert nobody.get(f"{LIST}{digits}/change/").status_code == 403
        assert anybody.get(LIST).status_code == 302

    def test_a_key_is_listed_found_and_explained_and_its_result_is_not_shown(self) -> None:
        digits, other = self.unknown("K", operation="transfer", scope="tenant 7"), self.completed("C", "confidential")
        clerk = self.staff("clerk", "view")
        listed = clerk.get(LIST).content.decode()
        assert f">{digits[:12]}</a>" in listed
        assert f">{other[:12]}</a>" in listed
        for sought in ("K", digits[:8], digits.upper()):
            found = clerk.get(LIST, {"q": sought}).content.decode()
            assert digits in found, sought
            assert other not in found, sought
        chosen = clerk.get(LIST, {"state": "unknown"}).content.decode()
        assert (digits in chosen, other in chosen) == (True, False)
        page = clerk.get(f"{LIST}{digits}/change/").content.decode()
        assert "is refused until the key is settled" in page
        assert f"python manage.py retrysafe keys release --hash {digits} --reason WHY" in page
        assert "confidential" not in clerk.get(f"{LIST}{other}/change/").content.decode()

    def test_nothing_can_be_added_changed_or_deleted(self) -> None:
        digits = self.completed("K")
        boss = Client()
        boss.force_login(User.objects.create_superuser("boss"))
        assert boss.get(f"{LIST}add/").status_code == 403
        assert boss.post(f"{LIST}{digits}/delete/", {"post": "yes"}).status_code == 403
        assert boss.post(f"{LIST}{digits}/change/", {"state": "released"}).status_code == 403
        assert "delete_selected" not in boss.get(LIST).content.decode()
        assert self.retry("K") == "done"

    def test_hostile_values_stay_text(self) -> None:
        scope = "<script>alert(1)</script>'\"\u202e; rm -rf ~"
        digits = self.unknown("K", scope=scope)
        boss = Client()
        boss.force_login(User.objects.create_superuser("boss"))
        for page in (boss.get(LIST), boss.get(f"{LIST}{digits}/change/"), self.preview(boss, "release", digits)):
            told = page.content.decode()
            assert "<script>alert" not in told
            assert escape(scope) in told
        for sought in ("\x1b[2J", "K" * 300, "%", "' OR 1=1 --", "zz"):
            assert boss.get(LIST, {"q": sought}, follow=True).status_code == 200, sought
        for mistyped in ("zz", "00", "_", digits[:10]):
            assert boss.get(f"{LIST}{mistyped}/change/").status_code == 302, mistyped

    def test_a_filter_selects_what_the_store_reports(self) -> None:
        states, kinds = (
            ("running", "unknown", "completed", "failed", "released"),
            ("keyed", "external", "transactional"),
        )
        given = list(product(states, kinds, (-5, 5), (-5, 5), (-5, 5)))
        Record.objects.bulk_create(self._record(*one) for one in given)
        chosen: dict[str, set[bytes]] = {state: set() for state in STATES}
        for record in Record.objects.all():
            chosen[record.as_read(NOW).reported_state].add(bytes(record.pk))
        for state in STATES:
            found = Record.objects.filter(match_reported(EffectiveState(state), NOW)).values_list("pk", flat=True)
            assert set(map(bytes, found)) == chosen[state], state

    def _record(self, *given: Any) -> Record:
        state, effects, lease, expires, memory = given
        return Record(
            key_hash=hashlib.sha256(json.dumps(given).encode()).digest(), boundary="b", scope="", operation="o",
            fingerprint=b"", state=state, attempt="a", token=1, attempts=1, effects=effects, lease_until=NOW + lease,
            created=1, updated=1, expires=NOW + expires, tombstone_until=NOW + memory, version=1,
        )  # fmt: skip


class Changing(Keys):
    """Each verb, by those who may, and by nobody else."""

    def test_a_reader_is_offered_no_action_and_an_action_that_he_posts_changes_nothing(self) -> None:
        digits, done = self.unknown("K"), self.completed("C")
        reader = self.staff("reader", "view")
        assert 'name="action"' not in reader.get(LIST).content.decode()
        for verb in VERBS:
            fields = {"action": verb.name, "_selected_action": [digits, done], "confirmed": "yes", "reason": "r"}
            reader.post(LIST, {**fields, "seen": [self._seen(digits), self._seen(done)]}, follow=True)
        assert (self.state(digits), self.state(done)) == ("unknown", "completed")

    def test_a_right_is_for_its_verbs_alone(self) -> None:
        digits, done = self.unknown("K"), self.completed("C")
        settler, expirer = self.staff("settler", "view", "resolve"), self.staff("expirer", "view", "expire")
        self.settle(settler, "expire", done)
        self.settle(expirer, "release", digits)
        assert (self.state(digits), self.state(done)) == ("unknown", "completed")
        self.settle(settler, "release", digits)
        self.settle(expirer, "expire", done)
        assert (self.state(digits), self.state(done)) == ("released", "expired")

    def test_each_verb_does_what_the_commands_do_and_is_audited(self) -> None:
        settler = self.staff("settler", "view", "resolve", "expire")
        digits = {key: self.unknown(key) for key in "ABC"}
        done = self.completed("D")
        with self.assertLogs("retrysafe.audit", "INFO") as audit:
            self.settle(settler, "complete", digits["A"], result='{"id": 7}')
            self.settle(settler, "fail", digits["B"], result="no such account")
            self.settle(settler, "release", digits["C"])
            self.settle(settler, "expire", done)
        assert self.retry("A") == {"id": 7}
        with pytest.raises(StoredFailure, match="no such account"):
            self.retry("B")
        assert (self.retry("C"), self.retry("D")) == ("again", "again")
        entries = [json.loads(record.getMessage()) for record in audit.records]
        assert [entry["audit"] for entry in entries] == ["intent", "outcome"] * 4
        assert {(entry["actor"], entry["reason"]) for entry in entries} == {("settler", "ticket 7")}
        history = {(entry.object_id, entry.user.username) for entry in LogEntry.objects.all()}
        assert history == {(one, "settler") for one in (*digits.values(), done)}

    def test_the_key_of_a_request_is_settled_to_its_response(self) -> None:
        def losing(environ: Any, start_response: Any) -> Any:
            raise TimeoutError

        guarded = WsgiClient(IdempotencyMiddleware(losing, self.transfers, principal="shared"))
        with pytest.raises(TimeoutError):
            guarded.post("/transfers", headers={"Idempotency-Key": "R"})
        with Operator("default", observers=()) as operator:
            (record,) = operator.find(boundary="transfers", operation="http")
        settler = self.staff("settler", "view", "resolve")
        digits, given = record.key.hex(), 'Location: /7\r\n\r\n{"id": 7}'
        assert "is not a status" in self.settle(settler, "complete", digits, result=given).content.decode()
        self.settle(settler, "complete", digits, result=f"201\r\n{given}")
        answer = guarded.post("/transfers", headers={"Idempotency-Key": "R"})
        assert (answer.status_code, answer.headers["location"], answer.json) == (201, "/7", {"id": 7})

    def test_nothing_is_changed_before_it_was_confirmed_with_a_reason(self) -> None:
        digits = self.unknown("K")
        settler = self.staff("settler", "view", "resolve")
        page = self.preview(settler, "release", digits)
        assert "it happens twice" in page.content.decode()
        refused = self.confirm(settler, "release", page, digits, reason=" ")
        assert "give the reason" in refused.content.decode()
        wrong = self.settle(settler, "complete", digits, result="{")
        assert "is not JSON" in wrong.content.decode()
        assert self.state(digits) == "unknown"
        with pytest.raises(OutcomeUnknown):
            self.retry("K")

    def test_without_an_audit_there_is_no_change(self) -> None:
        digits = self.unknown("K")
        settler = self.staff("settler", "view", "resolve")
        with override_settings(RETRYSAFE_AUDIT="/no/such/folder/audit.jsonl"):
            told = self.settle(settler, "release", digits).content.decode()
        assert "No such file" in told
        assert self.state(digits) == "unknown"
        assert not LogEntry.objects.exists()

    def test_a_key_that_was_used_since_it_was_shown_is_left_alone(self) -> None:
        digits = self.unknown("K")
        settler = self.staff("settler", "view", "resolve")
        page = self.preview(settler, "release", digits)
        self.settle(self.staff("other", "view", "resolve"), "release", digits)
        assert self.unknown("K") == digits, "unknown again, of another attempt"
        told = self.confirm(settler, "release", page, digits).content.decode()
        assert "1 left as they were" in told
        assert self.state(digits) == "unknown"

    def test_of_two_who_settle_a_key_at_once_exactly_one_does(self) -> None:
        digits = self.unknown("K")
        clients = {name: self.staff(name, "view", "resolve") for name in ("one", "other")}
        pages = {name: self.preview(client, "complete", digits) for name, client in clients.items()}
        start = threading.Barrier(2)

        def settling(name: str) -> Callable[[], None]:
            def settle() -> None:
                from django.db import connections

                start.wait(60)
                self.confirm(clients[name], "complete", pages[name], digits, result=json.dumps(name))
                connections.close_all()

            return settle

        threads = [threading.Thread(target=settling(name)) for name in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (entry,) = LogEntry.objects.all()
        assert self.retry("K") == entry.user.username

    def test_a_form_of_another_site_is_refused(self) -> None:
        digits = self.unknown("K")
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(User.objects.create_superuser("boss"))
        fields = {"action": "release", "_selected_action": digits, "confirmed": "yes", "reason": "r"}
        assert strict.post(LIST, {**fields, "seen": self._seen(digits)}).status_code == 403
        assert self.state(digits) == "unknown"

    def _seen(self, digits: str) -> str:
        record = Record.objects.get(pk=digits)
        return f"{digits}:{record.attempt}:{record.version}"
