"""The owners of keys in one process: no caller gets another's answer."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import sqlalchemy

from retrysafe import Boundary, ConfigurationError
from retrysafe.admin.describe import describe
from retrysafe.agents.gateway import Gateway
from retrysafe.agents.mcp import OnceTools
from retrysafe.agents.scope import ToolGuard
from retrysafe.http.guard import Guard
from retrysafe.messaging import Inbox
from retrysafe.webhooks import Receiver, StandardWebhooks
from tests.tables import each_row

_MODULE = """
from retrysafe import Boundary
from functools import partial

boundary = Boundary("events", store={url!r}, observers=() {more})

@boundary.once(key="event_id" {named})
def handle(event_id):
    return __name__
"""
Importing = Callable[..., types.ModuleType]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'events.db'}"


@pytest.fixture
def importing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Importing]:
    """Writes and imports a module that builds a boundary of one name and guards a function of one name."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(name: str, more: str = "", named: str = "", source: str = _MODULE) -> types.ModuleType:
        names.append(name)
        (tmp_path / f"{name}.py").write_text(source.format(url=url, more=more, named=named))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in names:
        module = sys.modules.pop(name, None)
        if module is not None and hasattr(module, "boundary"):
            module.boundary.close()


def build(url: str, **terms: Any) -> Boundary:
    """Always at one line of code."""
    return Boundary("events", store=url, observers=(), **terms)


# ---------------------------------------------------------------- boundaries


def test_two_modules_cannot_both_build_a_boundary_of_a_name(importing: Importing) -> None:
    importing("send_mail")
    with pytest.raises(ConfigurationError, match=r"built at .*send_mail\.py:5.*shared=True"):
        importing("write_invoice")


def test_nor_if_only_one_of_them_says_that_it_is_shared(importing: Importing) -> None:
    importing("send_mail", more=", shared=True")
    with pytest.raises(ConfigurationError, match="shared=True"):
        importing("write_invoice")


def test_nor_two_modules_without_files(url: str) -> None:
    """The lines of both have the same place in the same nameless text."""
    first: dict[str, Any] = {"__name__": "send_mail"}
    exec(_MODULE.format(url=url, more="", named=""), first)
    with pytest.raises(ConfigurationError, match="shared=True"):
        exec(_MODULE.format(url=url, more="", named=""), {"__name__": "write_invoice"})
    first["boundary"].close()


def test_functions_of_one_name_in_two_modules_have_keys_of_their_own(importing: Importing) -> None:
    mail, invoice = (importing(name, more=", shared=True") for name in ("send_mail", "write_invoice"))
    assert (mail.handle("e-1"), invoice.handle("e-1")) == ("send_mail", "write_invoice")
    assert [one["operation"] for one in describe(mail.boundary)["operations"]] == ["send_mail.handle"]
    assert describe(mail.boundary)["shared"].startswith("with others")


def test_functions_of_one_named_operation_are_refused_across_boundaries(importing: Importing) -> None:
    importing("send_mail", more=", shared=True", named=', operation="handle"')
    with pytest.raises(ConfigurationError, match=r"their keys would collide.*shared=True"):
        importing("write_invoice", more=", shared=True", named=', operation="handle"')


def test_unless_all_of_them_share_it_on_purpose(importing: Importing) -> None:
    named = ', operation="handle", shared=True'
    mail, invoice = (importing(name, ", shared=True", named) for name in ("send_mail", "write_invoice"))
    assert (mail.handle("e-1"), invoice.handle("e-1")) == ("send_mail", "send_mail")
    with pytest.raises(ConfigurationError, match="needs the operation="):
        mail.boundary.once(key="k", shared=True)


@pytest.mark.parametrize(
    "terms",
    [{"window": "48h"}, {"memory": "48h"}, {"effects": "external"}, {"secret": "other"}],
    ids=lambda terms: next(iter(terms)),
)
def test_boundaries_of_a_name_promise_the_same_unless_they_are_shared(url: str, terms: dict[str, Any]) -> None:
    first = build(url)
    with pytest.raises(ConfigurationError, match=f"{next(iter(terms))}="):
        build(url, **terms)
    first.close()
    shared = [build(url, shared=True), build(url, shared=True, **terms)]
    for one in shared:
        one.close()
    build(url, **terms).close()


def test_one_line_of_code_may_build_it_again(url: str) -> None:
    one, two = build(url), build(url)
    with one.claim("k") as claim:
        claim.result = 1
    with two.claim("k") as claim:
        assert claim.replayed


def test_one_that_is_closed_frees_its_name_and_one_that_is_forgotten_does_not(url: str) -> None:
    """We do not run the collector in the process of a user to see whether it is reachable."""
    first = Boundary("events", store=url, observers=())
    first.once(key="k", operation="handle")(lambda k: k)
    with pytest.raises(ConfigurationError, match=r"close\(\) that one"):
        Boundary("events", store=url, observers=())
    first.close()
    second = Boundary("events", store=url, observers=())
    second.once(key="k", operation="handle")(lambda k: k)
    second.close()


def test_other_stores_have_other_keys(url: str, tmp_path: Path) -> None:
    kept = [Boundary("events", store=url), Boundary("events", store=f"sqlite:///{tmp_path / 'other.db'}")]
    memory = [Boundary("events", store="memory://", window="1h"), Boundary("events", store="memory://", window="2h")]
    for one in (*kept, *memory):
        with one.claim("k") as claim:
            assert not claim.replayed
            claim.result = 1


def test_a_module_that_is_loaded_again_takes_its_own_place(importing: Importing, tmp_path: Path) -> None:
    module = importing("send_mail")
    assert module.handle("e-1") == "send_mail"
    before = module.boundary
    source = (tmp_path / "send_mail.py").read_text()
    (tmp_path / "send_mail.py").write_text(source.replace("return __name__", "return 'edited' + ''"))
    importlib.invalidate_caches()
    importlib.reload(module)
    assert module.boundary is not before
    assert (module.handle("e-1"), module.handle("e-2")) == ("send_mail", "edited")
    del sys.modules["send_mail"]
    again = importlib.import_module("send_mail")
    assert (again.handle("e-1"), again.handle("e-2")) == ("send_mail", "edited")
    (tmp_path / "send_mail.py").write_text("# a line more\n" + source)
    importlib.invalidate_caches()
    with pytest.raises(ConfigurationError, match=r"close\(\) that one"):
        importlib.reload(again)
    for one in (before, module.boundary, again.boundary):
        one.close()
    importlib.reload(again)
    again.boundary.close()


# ---------------------------------------------------------------- operations


@pytest.fixture
def boundary() -> Boundary:
    return Boundary("events", store="memory://", observers=())


def test_a_named_operation_has_one_function(boundary: Boundary) -> None:
    def charge(key: str) -> str:
        return "charged"

    def refund(key: str) -> str:
        return "refunded"

    for _ in range(2):
        boundary.once(key="key", operation="pay")(charge)
    with pytest.raises(ConfigurationError, match=r"'pay'.*charge.*their keys would collide"):
        boundary.once(key="key", operation="pay")(refund)


def test_functions_that_differ_in_their_defaults_or_their_object_are_two(boundary: Boundary) -> None:
    class Sender:
        def __init__(self, kind: str) -> None:
            self.kind = kind

        def send(self, key: str) -> str:
            return self.kind

    def handlers() -> Iterator[Callable[[str], str]]:
        for kind in ("mail", "invoice"):

            def handle(key: str, kind: str = kind) -> str:
                return kind

            yield handle

    def enclosing(kind: str) -> Callable[[str], str]:
        return lambda key: kind

    enclosed = [enclosing("mail"), enclosing("invoice")]
    for functions in ([*handlers()], [Sender("mail").send, Sender("invoice").send], enclosed):
        operation = functions[0].__qualname__
        boundary.once(key="key", operation=operation)(functions[0])
        with pytest.raises(ConfigurationError, match="their keys would collide"):
            boundary.once(key="key", operation=operation)(functions[1])


def test_a_line_that_builds_its_boundary_again_makes_its_function_again(url: str) -> None:
    """As a retry in the process does that was interrupted, whose boundary the collector has not seen yet."""

    def work(did: list[str]) -> str:
        boundary = build(url)

        @boundary.once(key="key")
        def handle(key: str) -> str:
            did.append(key)
            return "done"

        return handle("k")

    did = list[str]()
    assert [work(did), work([])] == ["done", "done"]
    assert did == ["k"]


def test_a_class_that_inherits_a_method_has_keys_of_its_own(boundary: Boundary) -> None:
    class Sender:
        did: ClassVar[list[str]] = []

        @boundary.once(key="key")
        def send(self, key: str) -> str:
            self.did.append(type(self).__name__)
            return type(self).__name__

        @classmethod
        @boundary.once(key="key")
        def make(cls, key: str) -> str:
            return cls.__name__

        @boundary.once(key="key", operation="named")
        def named(self, key: str) -> str:
            return type(self).__name__

    class Mail(Sender): ...

    class Invoice(Sender):
        def send(self, key: str) -> str:
            return "invoice by " + super().send(key)

    def sent() -> list[str]:
        return [Sender().send("k"), Mail().send("k"), Invoice().send("k")]

    assert sent() == sent() == ["Sender", "Mail", "invoice by Invoice"]
    assert Sender.did == ["Sender", "Mail", "Invoice"]
    assert [kind.make("k") for kind in (Sender, Mail, Sender, Mail)] == ["Sender", "Mail"] * 2
    assert [Mail().named("k"), Invoice().named("k")] == ["Mail", "Mail"]
    operations = [one["operation"] for one in describe(boundary)["operations"]]
    home = f"{__name__}.test_a_class_that_inherits_a_method_has_keys_of_its_own.<locals>"
    assert f"{home}.Sender.send" in operations
    assert f"{home}.Sender.send ({home}.Mail)" in operations


def test_a_consumer_has_one_handler_in_all_inboxes(url: str) -> None:
    boundary = Boundary("events", store=url, effects="transactional", observers=())

    def mail(message: Any) -> None: ...

    def invoice(message: Any) -> None: ...

    Inbox(boundary).handler("billing")(mail)
    Inbox(boundary).handler("billing")(mail)
    for decorate in (
        Inbox(boundary).handler("billing"),
        Inbox(boundary).batch_handler("billing"),
        boundary.once(key="message", operation="billing"),
    ):
        with pytest.raises(ConfigurationError, match="their keys would collide"):
            decorate(invoice)
    assert describe(boundary)["operations"][0]["operation"] == "billing"
    boundary.close()


_SECRET, _OTHER = b"s" * 32, b"t" * 32


def receiver_of(boundary: Boundary, secret: bytes) -> object:
    return Receiver(boundary, StandardWebhooks(secret))


def tools_of(boundary: Boundary, name: str) -> object:
    return OnceTools(boundary, principal="shared", book="order_id")


def gateway_of(boundary: Boundary, name: str) -> object:
    return Gateway(boundary, {"book": "order_id"}, [name], "shared")


def guard_of(boundary: Boundary, name: str) -> object:
    def book(order_id: str) -> str:
        return name

    return ToolGuard(boundary).once(key="order_id")(book)


TWINS: dict[str, tuple[Callable[[Boundary, Any], object], Any, Any]] = {
    "two senders of webhooks": (receiver_of, _SECRET, _OTHER),
    "two servers of tools": (tools_of, "air", "rail"),
    "two gateways": (gateway_of, "air", "rail"),
    "two agents' tools": (guard_of, "air", "rail"),
}


@each_row("make, one, other", TWINS.values(), ids=list(TWINS))
def test_one_line_that_makes_entry_points_for_two_has_two_owners(
    make: Callable[[Boundary, Any], object], one: Any, other: Any, url: str
) -> None:
    with closing(Boundary(f"b{uuid4().hex}", store=url, effects="keyed", window="7d", observers=())) as boundary:
        kept = make(boundary, one)
        if make is receiver_of:
            make(boundary, one)  # an application that is built again
        with pytest.raises(ConfigurationError, match="their keys would collide"):
            make(boundary, other)
        del kept


def test_http_requests_own_their_operation(boundary: Boundary) -> None:
    Guard(boundary, {}, principal="shared")
    Guard(boundary, {}, principal="shared")
    with pytest.raises(ConfigurationError, match="HTTP requests"):
        boundary.once(key="key", operation="http")(lambda key: key)
    assert describe(boundary)["operations"] == [
        {"operation": "http", "entry point": "HTTP requests", "key": "Idempotency-Key of the request"}
    ]


# ---------------------------------------------------------------- the name of the module that was started


_SCRIPT = """
from retrysafe import Boundary

boundary = Boundary("events", store={url!r}, observers=())

@boundary.once(key="event_id")
def handle(event_id):
    return "done"

if __name__ == "__main__":
    handle("e-1")
    print(*boundary.entrypoint.owners)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [("-m", "app.worker"), ("worker.py",)], ids=["by name", "by path"])
def test_the_module_that_a_process_was_started_with_has_the_name_it_is_imported_by(
    url: str, tmp_path: Path, how: tuple[str, ...]
) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "worker.py").write_text(_SCRIPT.format(url=url))
    where, name = (tmp_path, "app.worker") if how[0] == "-m" else (folder, "worker")
    told = subprocess.run([sys.executable, *how], cwd=where, check=True, capture_output=True, text=True).stdout
    imported = textwrap.dedent(f"import {name} as it; it.handle('e-1'); print(*it.boundary.entrypoint.owners)")
    assert (
        told
        == subprocess.run(
            [sys.executable, "-c", imported], cwd=where, check=True, capture_output=True, text=True
        ).stdout
    )
    assert told.strip() == f"{name}.handle"


def test_code_that_no_process_could_import_names_its_operation(boundary: Boundary) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def handle(event_id): ...", names)
    with pytest.raises(ConfigurationError, match="operation="):
        boundary.once(key="event_id")(names["handle"])
    boundary.once(key="event_id", operation="handle")(names["handle"])


@pytest.mark.parametrize("spelling", ["path", "engine"])
def test_a_second_boundary_on_the_same_file_under_another_spelling_is_refused(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, url = Boundary("spelled", store="sqlite:///spelled.db"), f"sqlite:///{tmp_path}/spelled.db"
    with pytest.raises(ConfigurationError, match="There is a boundary 'spelled' on this store already"):
        Boundary("spelled", store=url if spelling == "path" else sqlalchemy.create_engine(url))
    first.close()
