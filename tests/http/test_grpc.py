"""gRPC: calls over real connections, on both servers."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest

from retrysafe import Boundary, current, wait
from retrysafe.backends.registry import connect
from retrysafe.http.grpc import AsyncIdempotencyInterceptor, IdempotencyInterceptor
from tests.conftest import require
from tests.faults.helpers import unique
from tests.tables import each_row

Code = grpc.StatusCode
KEY = "idempotency-key"


class Got(NamedTuple):
    """The client's view of a call."""

    code: Any
    body: bytes | None
    replayed: bool
    trailing: dict[str, Any]


class Service:
    """Handlers that count how often they ran; ``do`` is what the next ones do."""

    def __init__(self) -> None:
        self.ran = 0
        self.do: Callable[[Any], Any] = lambda context: None
        self.gate = threading.Event()
        self.began = threading.Event()

    def place(self, request: Message, context: Any) -> Message:
        self.ran += 1
        self.began.set()
        self.do(context)
        return Message(f"{request.text} {self.ran}")

    async def aplace(self, request: Message, context: Any) -> Message:
        self.ran += 1
        self.began.set()
        done = self.do(context)
        if done is not None:
            await done
        return Message(f"{request.text} {self.ran}")

    async def awatch(self, request: Message, context: Any) -> Any:
        self.ran += 1
        yield Message("one")

    def watch(self, request: Message, context: Any) -> Iterator[Message]:
        self.ran += 1
        yield Message("one")


class Message(NamedTuple):
    """A message; gRPC's aio server does not take plain text for one."""

    text: str


def _read(raw: bytes) -> Message:
    return Message(raw.decode())


def _write(message: Message) -> bytes:
    return message.text.encode()


def handlers(place: Any, watch: Any) -> Any:
    kinds = {"request_deserializer": _read, "response_serializer": _write}
    return grpc.method_handlers_generic_handler(
        "shop.Orders",
        {
            "Place": grpc.unary_unary_rpc_method_handler(place, **kinds),
            "Cancel": grpc.unary_unary_rpc_method_handler(place, **kinds),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, **kinds),
        },
    )


@contextmanager
def sync_server(service: Service, boundary: Boundary, **options: Any) -> Iterator[int]:
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(
            pool, interceptors=[IdempotencyInterceptor(boundary, **{"principal": "shared", **options})]
        )
        server.add_generic_rpc_handlers((handlers(service.place, service.watch),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


@contextmanager
def async_server(service: Service, boundary: Boundary, **options: Any) -> Iterator[int]:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[Any, int]:
        server = grpc.aio.server(
            interceptors=[AsyncIdempotencyInterceptor(boundary, **{"principal": "shared", **options})]
        )
        server.add_generic_rpc_handlers((handlers(service.aplace, service.awatch),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    async def stop() -> None:
        await server.stop(None)
        await boundary.aclose()

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


SERVERS = {"sync": sync_server, "aio": async_server}


class Client:
    """Calls over one connection."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __call__(self, request: str = "order", method: str = "Place", **metadata: str) -> Got:
        pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        return self.raw(request, method, pairs)

    def raw(self, request: str, method: str, pairs: tuple[tuple[str, str], ...]) -> Got:
        kind = self._channel.unary_stream if method == "Watch" else self._channel.unary_unary
        call = kind(f"/shop.Orders/{method}", request_serializer=str.encode)
        if method == "Watch":
            stream = call(request, metadata=pairs)
            try:
                return Got(Code.OK, b"".join(stream), False, {})
            except grpc.RpcError as error:
                return Got(error.code(), None, False, dict(error.trailing_metadata()))
        future = call.future(request, metadata=pairs)
        error = future.exception()
        initial = dict(future.initial_metadata())
        body = None if error is not None else future.result()
        return Got(future.code(), body, initial.get("idempotent-replayed") == "true", dict(future.trailing_metadata()))


class Setup(NamedTuple):
    service: Service
    client: Client
    boundary: Boundary


Build = Callable[..., Any]


STORES = ("memory", "sqlite", "postgresql", "redis")


BUILDS = [(colour, store) for store in STORES for colour in SERVERS]


def modes(*wanted: str) -> pytest.MarkDecorator:
    """Each server and store with each of these modes that it can have."""
    can = [(found, mode) for found in BUILDS for mode in wanted if mode != "transactional" or _has_transactions(found)]
    cells = [pytest.param(found, mode, id="-".join((*found, mode))) for found, mode in can]
    return pytest.mark.parametrize(("build", "effects"), cells, indirect=["build"])


def _has_transactions(found: tuple[str, str]) -> bool:
    return found[1] not in ("memory", "redis")


TRANSACTIONAL = pytest.mark.parametrize("build", [*filter(_has_transactions, BUILDS)], ids="-".join, indirect=True)


@pytest.fixture(params=BUILDS, ids="-".join)
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    colour, kind = request.param
    if kind in ("postgresql", "redis"):
        require(kind)
    url = url_of(kind, tmp_path)

    @contextmanager
    def built(
        effects: str = "keyed", terms: dict[str, Any] | None = None, store: str | None = None, **options: Any
    ) -> Iterator[Setup]:
        boundary = Boundary(unique("shop"), store=store or url, effects=effects, **terms or {})  # type: ignore[arg-type]
        service = Service()
        try:
            with (
                SERVERS[colour](service, boundary, **options) as port,
                grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
            ):
                yield Setup(service, Client(channel), boundary)
        finally:
            boundary.close()

    built.colour = colour  # type: ignore[attr-defined]
    return built


def url_of(kind: str, folder: Path) -> str:
    """The URL of a store that can be used at once."""
    if kind in ("memory", "sqlite"):
        return "memory://" if kind == "memory" else f"sqlite:///{folder}/keys.db"
    url = os.environ[f"RETRYSAFE_TEST_{kind.upper()}"]
    if kind == "postgresql":
        connect(url).migrate()
    return url


MODES = modes("keyed", "transactional", "external")


@MODES
def test_r2_a_retry_gets_the_first_answer(build: Build, effects: str) -> None:
    with build(effects) as (service, client, _):
        first, again = client(idempotency_key='"k"'), client(idempotency_key="k")
        assert (first.code, first.body, first.replayed) == (Code.OK, b"order 1", False)
        assert (again.code, again.body, again.replayed) == (Code.OK, b"order 1", True)
        assert service.ran == 1


def test_k1_k2_k9_quoted_bare_and_with_another_token_are_one_key(build: Build) -> None:
    def who(context: Any) -> str | None:
        return str(dict(context.invocation_metadata())["authorization"]).partition(".")[0]

    with build(principal=who) as (service, client, _):
        first = client(idempotency_key='"k"; a=1', authorization="ann.1")
        for key in ('"k"', "k"):
            again = client(idempotency_key=key, authorization="ann.2")
            assert (again.code, again.body, again.replayed) == (Code.OK, first.body, True)
        assert service.ran == 1


def test_k11_a_guessable_key_is_refused_when_asked(build: Build) -> None:
    with build(key_policy="strong") as (service, client, _):
        got = client(idempotency_key="1024")
        assert (got.code, got.trailing["retrysafe-code"], service.ran) == (Code.INVALID_ARGUMENT, "key-invalid", 0)
        assert client(idempotency_key="0b8f7a1e-6a3c-4c57-8d5f-2f1f0e9b7c11").code is Code.OK


def test_f5_metadata_does_not_count(build: Build) -> None:
    with build() as (service, client, _):
        client(idempotency_key="k", traceparent="00-1", x_request_id="1")
        assert client(idempotency_key="k", traceparent="00-2", x_request_id="2").replayed
        assert service.ran == 1


def test_f6_a_mismatch_is_told_while_the_first_still_runs(build: Build) -> None:
    with build() as (service, client, _):
        service.do = _holding(build, service)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(client, idempotency_key="k")
            assert service.began.wait(60)
            got = client("other", idempotency_key="k")
            service.gate.set()
            assert first.result().body == b"order 1"
        assert (got.code, got.trailing["retrysafe-code"]) == (Code.INVALID_ARGUMENT, "key-reused")
        assert client(idempotency_key="k").body == b"order 1"


def test_r7_empty_and_binary_messages_are_replayed(build: Build) -> None:
    with build() as (service, client, _):
        for text in ("", "\x00\x1f\u00e9"):
            key = f"k{len(text)}"
            first, again = client(text, idempotency_key=key), client(text, idempotency_key=key)
            assert (again.code, again.body, again.replayed) == (Code.OK, first.body, True)
            assert first.body is not None
            assert first.body.startswith(text.encode())
        assert service.ran == 2


def test_k6_without_a_key_a_call_passes_unless_it_is_required(build: Build) -> None:
    with build(routes={"/shop.Orders/Place": "required"}) as (service, client, _):
        assert client().code is Code.INVALID_ARGUMENT
        assert client().trailing["retrysafe-code"] == "key-missing"
        assert service.ran == 0
        assert client(method="Cancel").body == b"order 1"
        assert client(method="Cancel").body == b"order 2"


@each_row("pairs", [((KEY, "a"), (KEY, "b")), ((KEY, '"a'),), ((KEY, ""),), ((KEY, "a,b"),), ((KEY, "a" * 256),)])
def test_k3_k4_k5_a_broken_key_is_refused(build: Build, pairs: tuple[tuple[str, str], ...]) -> None:
    with build() as (service, client, _):
        got = client.raw("order", "Place", pairs)
        assert (got.code, got.trailing["retrysafe-code"]) == (Code.INVALID_ARGUMENT, "key-invalid")
        assert service.ran == 0


@MODES
def test_f1_another_request_or_method_under_the_same_key_is_refused(build: Build, effects: str) -> None:
    with build(effects) as (service, client, _):
        client(idempotency_key="k")
        for got in (client("other", idempotency_key="k"), client(method="Cancel", idempotency_key="k")):
            assert (got.code, got.trailing["retrysafe-code"]) == (Code.INVALID_ARGUMENT, "key-reused")
        assert service.ran == 1


def test_k8_principals_do_not_meet_and_nobody_is_refused(build: Build) -> None:
    def who(context: Any) -> str | None:
        return dict(context.invocation_metadata()).get("user")

    with build(principal=who) as (service, client, _):
        assert client(idempotency_key="k", user="ann").body == b"order 1"
        assert client(idempotency_key="k", user="bob").body == b"order 2"
        assert client(idempotency_key="k", user="ann").body == b"order 1"
        assert client(idempotency_key="k").code is Code.UNAUTHENTICATED
        assert service.ran == 2


def test_r1_a_simultaneous_duplicate_is_told_to_come_back(build: Build) -> None:
    with build() as (service, client, _):
        hold = _holding(build, service)
        service.do = hold
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(client, idempotency_key="k")
            assert service.began.wait(60)
            got = client(idempotency_key="k")
            service.gate.set()
            assert first.result().body == b"order 1"
        assert (got.code, got.trailing["retrysafe-code"]) == (Code.ABORTED, "in-progress")
        assert int(got.trailing["grpc-retry-pushback-ms"]) >= 1000
        assert client(idempotency_key="k").replayed


def test_r1_or_waits_for_the_answer(build: Build) -> None:
    with build(terms={"concurrency": wait(10)}) as (service, client, _):
        service.do = _holding(build, service)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(client, idempotency_key="k")
            assert service.began.wait(60)
            second = pool.submit(client, idempotency_key="k")
            service.gate.set()
            assert {first.result().body, second.result().body} == {b"order 1"}


def _holding(build: Build, service: Service) -> Callable[[Any], Any]:
    """Return a wrapper that makes a handler wait for the gate, in its colour."""

    def wait_sync(context: Any) -> None:
        assert service.gate.wait(60)

    async def wait_async() -> None:
        assert await asyncio.to_thread(service.gate.wait, 10)

    return wait_sync if build.colour == "sync" else lambda context: wait_async()  # type: ignore[attr-defined]


STORED = [Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.FAILED_PRECONDITION, Code.ALREADY_EXISTS, Code.OUT_OF_RANGE]
FREED = [Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.RESOURCE_EXHAUSTED, Code.INTERNAL, Code.UNAVAILABLE]


@modes("keyed", "transactional")
@pytest.mark.parametrize("how", ["abort", "set_code"])
def test_d1_refusals_are_stored_and_failures_free_the_key(build: Build, effects: str, how: str) -> None:
    with build(effects) as (service, client, _):
        for code in STORED + FREED:
            before = service.ran

            def refuse(context: Any, code: Any = code) -> Any:
                context.set_trailing_metadata((("why", "because"),))
                if how == "abort":
                    return context.abort(code, "no")
                context.set_code(code)
                context.set_details("no")
                return None

            service.do = refuse
            first, again = client(idempotency_key=code.name), client(idempotency_key=code.name)
            assert first.code is again.code is code
            assert first.trailing["why"] == again.trailing["why"] == "because"
            assert service.ran - before == (1 if code in STORED else 2), code


@modes("transactional")
def test_a_serialization_failure_that_is_answered_by_abort_runs_the_handler_again(
    build: Build, effects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wanted(Exception):
        pass

    with build(effects) as (service, client, boundary):
        monkeypatch.setattr(boundary._settings.backend, "restarts", lambda error: isinstance(error, Wanted))

        async def again(context: Any) -> None:
            try:
                raise Wanted
            except Wanted:
                await context.abort(Code.ALREADY_EXISTS, "no")

        def refuse(context: Any) -> Any:
            if service.ran == 3:
                return None
            if build.colour == "aio":  # type: ignore[attr-defined]
                return again(context)
            try:
                raise Wanted
            except Wanted:
                return context.abort(Code.ALREADY_EXISTS, "no")

        service.do = refuse
        assert [client(idempotency_key="k").code for _ in range(2)] == [Code.OK] * 2
        assert service.ran == 3


def test_d1_a_call_that_is_aborted_in_a_group_of_tasks_is_aborted(build: Build) -> None:
    async def together(context: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(context.abort(Code.NOT_FOUND, "no"))

    def refuse(context: Any) -> Any:
        if build.colour == "aio":  # type: ignore[attr-defined]
            return together(context)
        try:
            return context.abort(Code.NOT_FOUND, "no")
        except Exception as error:
            raise ExceptionGroup("one", [error]) from error

    with build() as (service, client, _):
        service.do = refuse
        assert [client(idempotency_key="k").code for _ in range(2)] == [Code.NOT_FOUND] * 2
        assert service.ran == 1


def test_r16_an_exception_frees_a_keyed_key_and_leaves_an_external_one_unknown(build: Build) -> None:
    def fail(context: Any) -> None:
        raise RuntimeError("broken")

    for effects, after in (("keyed", Code.OK), ("external", Code.FAILED_PRECONDITION)):
        with build(effects, {"scope": effects}) as (service, client, _):
            service.do = fail
            assert client(idempotency_key="k").code is Code.UNKNOWN
            service.do = lambda context: None
            assert client(idempotency_key="k").code is after


@TRANSACTIONAL
def test_t1_a_transaction_is_rolled_back_with_a_failure_and_kept_with_the_answer(build: Build) -> None:
    table = unique("orders")

    def write(context: Any) -> Any:
        tx = current().tx
        done = (
            tx.execute(f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER)"),
            tx.execute(f"INSERT INTO {table} VALUES (1)"),
        )
        return _awaited(done) if hasattr(done[0], "__await__") else None

    with build("transactional") as (service, client, boundary):

        def fail(context: Any) -> Any:
            done = write(context)
            if done is None:
                raise RuntimeError("broken")
            return _then_fail(done)

        service.do = fail
        assert client(idempotency_key="k").code is Code.UNKNOWN
        service.do = write
        assert client(idempotency_key="k").body == b"order 2"
        assert client(idempotency_key="k").body == b"order 2"
        with boundary.claim("count") as claim:
            assert claim.tx.execute(f"SELECT count(*) FROM {table}").fetchall() == [(1,)]


async def _awaited(steps: tuple[Any, ...]) -> None:
    for step in steps:
        await step


async def _then_fail(done: Any) -> None:
    await done
    raise RuntimeError("broken")


def test_r11_streams_cannot_be_replayed_so_they_are_not_begun_under_a_key(build: Build) -> None:
    with build() as (service, client, _):
        got = client(method="Watch", idempotency_key="k")
        assert (got.code, service.ran) == (Code.UNIMPLEMENTED, 0)
        assert client(method="Watch").body == b"one"


def test_r12_r11_limits(build: Build) -> None:
    with build(body_limit=10, response_limit=10) as (service, client, _):
        assert client("a" * 11, idempotency_key="a").code is Code.RESOURCE_EXHAUSTED
        assert service.ran == 0
        first, again = client("a" * 10, idempotency_key="b"), client("a" * 10, idempotency_key="b")
        assert first.body == b"a" * 10 + b" 1"
        assert (again.code, again.body) == (Code.FAILED_PRECONDITION, None), "no bytes are a message, but not this one"
        assert (again.trailing["retrysafe-code"], service.ran) == ("result-unavailable", 1)


def test_r12_no_temporary_file_is_left_open(build: Build) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        with build(body_memory=10) as (_, client, _boundary):
            assert client("a" * 99, idempotency_key="a").code is client("a" * 99, idempotency_key="a").code is Code.OK
            assert client("b" * 99, idempotency_key="a").code is Code.INVALID_ARGUMENT
        gc.collect()
    assert [str(one.message) for one in caught if "TemporaryFile" in str(one.message)] == []


def test_an_allow_list_of_trailing_metadata_does_not_drop_the_status(build: Build) -> None:
    with build(headers=["kept"]) as (service, client, _):
        service.do = lambda context: context.set_trailing_metadata((("kept", "1"), ("dropped", "1")))
        client(idempotency_key="k")
        again = client(idempotency_key="k")
        assert (again.code, again.trailing.get("kept"), again.trailing.get("dropped")) == (Code.OK, "1", None)


def test_r20_a_handler_that_finds_its_lease_lost_is_answered_as_such(build: Build) -> None:
    def lost() -> None:
        claim = current()
        claim._held.until = 0.0  # type: ignore[union-attr]  # as after a pause, before the heartbeat beats again
        claim.ensure_held()

    async def alost() -> None:
        lost()

    with build() as (service, client, _):
        service.do = lambda context: alost() if build.colour == "aio" else lost()  # type: ignore[attr-defined]
        got = client(idempotency_key="k")
        assert (got.code, got.trailing["retrysafe-code"]) == (Code.ABORTED, "in-progress")


def test_r25_an_unreachable_store_is_unavailable(build: Build) -> None:
    with build(store="postgresql://127.0.0.1:1/nowhere") as (service, client, _):
        got = client(idempotency_key="k")
        assert (got.code, got.trailing["retrysafe-code"]) == (Code.UNAVAILABLE, "store-unavailable")
        assert service.ran == 0
        assert client().body == b"order 1"
