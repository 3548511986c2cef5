"""The rules of the contract in WSGI, on every store, leased and transactional."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.validate import validator

import pytest

from retrysafe import Boundary, current, wait
from retrysafe.http.wsgi import IdempotencyMiddleware, status_line
from tests.http.conftest import Place
from tests.http.gateway import Served, post
from tests.tables import each_row

SQL = ["sqlite-transactional", "postgresql-transactional"]
LEASED = ["memory", "sqlite", "postgresql", "redis"]


class App:
    """Answers what it is told to, and counts how often it ran."""

    def __init__(
        self,
        status: str = "201 Created",
        headers: Iterable[tuple[str, str]] = (("Content-Type", "application/json"),),
        body: Iterable[bytes] = (b'{"order": 1}',),
        during: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.runs = 0
        self.status = status
        self.headers = list(headers)
        self.body = body
        self.during = during
        self.environ: dict[str, Any] = {}
        self.read: list[bytes] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.runs += 1
        self.environ = environ
        self.read.append(environ["wsgi.input"].read())
        if self.during is not None:
            self.during(environ)
        start_response(self.status, self.headers)
        return [*self.body]


@pytest.fixture
def memory() -> Iterator[Boundary]:
    made = Boundary("wsgi", store="memory://")
    yield made
    made.close()


# ------------------------------------------------------------ keys


def test_k1_k2_quoted_and_bare_are_the_same_key(place: Place) -> None:
    app = App()
    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    assert not post(guarded, "k-1").replayed
    assert post(guarded, '"k-1"; v=1').replayed
    assert app.runs == 1


@each_row("joined", ["a,b", "a, a", '"a","b"', '"a", "a"'])
def test_k3_lines_that_the_server_joined_are_refused(memory: Boundary, joined: str) -> None:
    app = App()
    answer = post(IdempotencyMiddleware(app, memory, principal="shared"), joined)
    assert (answer.status, answer.code, app.runs) == (400, "key-invalid", 0)


@each_row("key", ["", '""', "a" * 256, "\x00", "caf\xe9", '"a'])
def test_k4_k5_a_bad_key_is_refused_before_the_body_is_read(place: Place, key: str) -> None:
    class Unread(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise AssertionError("The body was read.")

    app = App()
    answer = post(IdempotencyMiddleware(app, place.boundary(), principal="shared"), key, **{"wsgi.input": Unread()})
    assert (answer.status, answer.code, app.runs) == (400, "key-invalid", 0)
    assert place.seen.names == []


def test_k6_without_a_key_the_request_passes_or_is_refused(memory: Boundary) -> None:
    app = App()
    assert post(IdempotencyMiddleware(app, memory, principal="shared"), None).status == 201
    assert "retrysafe.exchange" not in app.environ
    answer = post(IdempotencyMiddleware(app, memory, required=True, principal="shared"), None)
    assert (answer.status, answer.code, app.runs) == (400, "key-missing", 1)


@each_row("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
def test_k7_other_methods_pass_untouched(memory: Boundary, method: str) -> None:
    app = App()
    guarded = IdempotencyMiddleware(app, memory, required=True, principal="shared")
    for _ in range(2):
        served = Served(guarded, method=method)
        assert app.environ is served.environ
        served.end()
    assert app.runs == 2


def test_k8_two_principals_do_not_meet_and_nobody_is_refused(place: Place) -> None:
    app = App()
    guarded = IdempotencyMiddleware(app, place.boundary(), principal=lambda environ: environ.get("REMOTE_USER"))
    for user in ("ann", "bob"):
        assert not post(guarded, REMOTE_USER=user).replayed
        assert post(guarded, REMOTE_USER=user).replayed
    answer = post(guarded)
    assert (answer.status, answer.code, app.runs) == (403, "principal-missing", 2)


def test_k9_a_refreshed_token_is_the_same_principal(place: Place) -> None:
    guarded = IdempotencyMiddleware(App(), place.boundary(), principal=lambda environ: environ["REMOTE_USER"])
    post(guarded, REMOTE_USER="ann", headers=[("Authorization", "Bearer 1")])
    assert post(guarded, REMOTE_USER="ann", headers=[("Authorization", "Bearer 2")]).replayed


# ------------------------------------------------------------ fingerprints


@each_row(
    "other",
    [
        {"body": b'{"x": 1}'},
        {"method": "PATCH"},
        {"path": "/other"},
        {"QUERY_STRING": "a=1"},
        {"CONTENT_TYPE": "text/plain"},
        {"headers": [("Content-Encoding", "gzip")]},
        {"headers": [("If-Match", '"v1"')]},
        {"headers": [("If-None-Match", "*")]},
    ],
    ids=str,
)
def test_f1_f6_another_request_with_the_key_is_refused(place: Place, other: dict[str, Any]) -> None:
    app = App()
    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    post(guarded)
    answer = post(guarded, **other)
    assert (answer.status, answer.code, app.runs) == (422, "key-reused", 1)
    assert post(guarded).replayed


@pytest.mark.parametrize("name", ["RAW_URI", "REQUEST_URI"])
@pytest.mark.parametrize(("one", "other"), [("/a%2Fb", "/a/b"), ("/a/", "/a"), ("/a?a=1", "/b?a=1")])
def test_f2_the_path_is_the_one_on_the_wire(memory: Boundary, name: str, one: str, other: str) -> None:
    guarded = IdempotencyMiddleware(App(), memory, principal="shared")
    post(guarded, path="/same", **{name: one})
    assert post(guarded, path="/same", **{name: other}).status == 422
    assert post(guarded, path="/same", **{name: f"http://shop.test:8000{one}"}).replayed, "as proxies ask"


def test_f2_without_the_path_on_the_wire_the_decoded_one_counts(memory: Boundary) -> None:
    guarded = IdempotencyMiddleware(App(), memory, principal="shared")
    post(guarded, path="/caf\xc3\xa9 1", SCRIPT_NAME="/shop")
    assert post(guarded, path="/caf\xc3\xa9 1", SCRIPT_NAME="/shop").replayed
    assert post(guarded, path="/shop/caf\xc3\xa9 1", SCRIPT_NAME="").replayed, "mounted elsewhere, asked the same"
    assert post(guarded, path="/caf\xc3\xa9 1", SCRIPT_NAME="").status == 422


def test_f4_a_fresh_multipart_boundary_is_the_same_request(place: Place) -> None:
    guarded = IdempotencyMiddleware(App(), place.boundary(), principal="shared")
    for boundary in ("aaaaaaaa", "bbbbbbbb"):
        body = f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--{boundary}--\r\n'.encode()
        last = post(guarded, body=body, CONTENT_TYPE=f"multipart/form-data; boundary={boundary}")
    assert last.replayed


# ------------------------------------------------------------ the body of a request


@pytest.mark.parametrize("memory_limit", [0, 1 << 20])
def test_r12_the_application_reads_the_body_from_its_beginning(memory: Boundary, memory_limit: int) -> None:
    lines: list[bytes] = []
    app = App(during=lambda environ: lines.extend(environ["wsgi.input"]))
    post(IdempotencyMiddleware(app, memory, body_memory=memory_limit, principal="shared"), body=b"a\nb\n" * 50_000)
    assert app.read == [b"a\nb\n" * 50_000]
    assert lines == []


def test_r12_a_body_without_a_length_is_read_to_its_end_where_the_server_ends_it(memory: Boundary) -> None:
    app = App()
    guarded = IdempotencyMiddleware(app, memory, principal="shared")
    chunked = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    post(guarded, body=b"one", **chunked)
    assert app.read == [b"one"]
    assert post(guarded, body=b"one", **chunked).replayed
    assert post(guarded, body=b"two", **chunked).status == 422


def test_r12_a_body_whose_end_cannot_be_found_is_refused(memory: Boundary) -> None:
    app = App()
    answer = post(
        IdempotencyMiddleware(app, memory, principal="shared"), CONTENT_LENGTH="", HTTP_TRANSFER_ENCODING="chunked"
    )
    assert (answer.status, answer.code, app.runs) == (400, "request-invalid", 0)


def test_r12_nothing_is_read_beyond_the_declared_length(memory: Boundary) -> None:
    rest = io.BytesIO(b"onePOST /next")
    app = App()
    post(IdempotencyMiddleware(app, memory, principal="shared"), CONTENT_LENGTH="3", **{"wsgi.input": rest})
    assert (app.read, rest.read()) == ([b"one"], b"POST /next")
    post(IdempotencyMiddleware(app, memory, principal="shared"), "other", CONTENT_LENGTH="", **{"wsgi.input": rest})
    assert app.read[1:] == [b""]


@pytest.mark.fault(19)
@pytest.mark.parametrize("length", ["4", "x", "-1", "²"])
def test_f19_a_body_that_breaks_off_claims_nothing(memory: Boundary, length: str) -> None:
    app = App()
    guarded = IdempotencyMiddleware(app, memory, principal="shared")
    answer = post(guarded, body=b"one", CONTENT_LENGTH=length)
    assert (answer.status, answer.code, app.runs) == (400, "request-invalid", 0)
    assert not post(guarded, body=b"one!").replayed


def test_r12_over_the_hard_limit(memory: Boundary) -> None:
    app = App()
    guarded = IdempotencyMiddleware(app, memory, body_limit=3, principal="shared")
    assert post(guarded, body=b"four").code == "request-too-large"
    assert post(guarded, body=b"one", CONTENT_LENGTH="9" * 5000).status == 413
    chunked = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    assert post(guarded, body=b"four", **chunked).status == 413
    assert app.runs == 0


# ------------------------------------------------------------ responses


def test_r2_r4_r5_r6_the_retry_gets_the_same_response_marked(place: Place) -> None:
    headers = [
        ("Content-Type", "application/json"),
        ("Link", "</a>; rel=next"),
        ("X-Trace", "1"),
        ("Link", "</b>; rel=prev"),
        ("Set-Cookie", "session=1"),
        ("Location", "/orders/1"),
    ]
    app = App(headers=headers, body=[b"\x00\xff", b"", b"\n"])
    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    first, second = post(guarded), post(guarded)
    assert first.lines == [(name.lower(), value) for name, value in headers]
    assert (second.status, second.body, app.runs) == (first.status, first.body, 1)
    assert second.lines == [
        *((name.lower(), value) for name, value in headers if name != "Set-Cookie"),
        ("cache-control", "no-store"),
        ("idempotent-replayed", "true"),
        ("content-length", "3"),
    ]


@each_row("status", ["204 No Content", "303 See Other", "200 OK"])
def test_r7_r8_a_response_without_a_body(place: Place, status: str) -> None:
    seen = []

    class Watched(IdempotencyMiddleware):
        def __call__(self, environ: Any, start_response: Any) -> Any:
            def watched(*args: Any) -> Any:
                seen.append(place.seen.names[-1])
                return start_response(*args)

            return super().__call__(environ, watched)

    guarded = Watched(App(status, [], []), place.boundary(), principal="shared")
    first, second = post(guarded), post(guarded)
    assert seen == ["completed", "replayed"], "recorded before the start could leave"
    assert (second.status, second.body, second.replayed) == (first.status, b"", True)


@pytest.mark.parametrize("place", LEASED, indirect=True)
def test_r8_the_last_bytes_leave_after_the_record(place: Place) -> None:
    guarded = IdempotencyMiddleware(
        App(headers=[("Content-Length", "2")], body=[b"a", b"b", b""]), place.boundary(), principal="shared"
    )
    served = Served(guarded)
    assert served.take() == b"a"
    assert post(guarded).code == "in-progress"
    assert served.take() == b"b"
    assert post(guarded).body == b"ab"
    served.end()


@pytest.mark.parametrize("place", SQL, indirect=True)
def test_r8_nothing_of_a_transactional_response_leaves_before_the_commit(place: Place) -> None:
    guarded = IdempotencyMiddleware(App(body=[b"a", b"b"]), place.boundary(), principal="shared")
    served = Served(guarded)
    assert place.seen.names[-1] == "completed"
    assert (served.begun, served.body) == (1, b"")
    assert post(guarded).body == b"ab"
    assert served.end().body == b"ab"


def test_r1_n_at_once_run_once(place: Place) -> None:
    inside, go = threading.Event(), threading.Event()

    def during(environ: dict[str, Any]) -> None:
        inside.set()
        assert go.wait(60)

    app = App(during=during)
    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    answers: list[Served] = []
    first = threading.Thread(target=lambda: answers.append(post(guarded)))
    first.start()
    assert inside.wait(60)
    if place.store.startswith("sqlite") and place.transactional:
        go.set()  # a writer waits for the writer before it: then the others replay
    others = [post(guarded) for _ in range(3)]
    go.set()
    first.join()
    assert answers[0].status == 201
    assert app.runs == 1
    for other in others:
        if not other.replayed:
            assert (other.status, other.code) == (409, "in-progress")
            assert int(other.header("retry-after") or 0) >= 1


@pytest.mark.parametrize("place", [*LEASED, "postgresql-transactional"], indirect=True)
def test_r1_the_others_wait_if_so_configured(place: Place) -> None:
    inside, go = threading.Event(), threading.Event()

    def during(environ: dict[str, Any]) -> None:
        inside.set()
        assert go.wait(60)

    app = App(during=during)
    guarded = IdempotencyMiddleware(app, place.boundary(concurrency=wait("30s")), principal="shared")
    answers: list[Served] = []
    threads = [threading.Thread(target=lambda: answers.append(post(guarded))) for _ in range(2)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join()
    assert (app.runs, sorted(answer.replayed for answer in answers)) == (1, [False, True])


@pytest.mark.parametrize("place", LEASED, indirect=True)
def test_r11_a_response_over_the_limit_is_live_and_its_body_omitted(place: Place) -> None:
    taken = []

    def body() -> Iterator[bytes]:
        for number in range(4):
            taken.append(number)
            yield b"1234"

    app = Streamed(body)
    guarded = IdempotencyMiddleware(app, place.boundary(), response_limit=6, principal="shared")
    served = Served(guarded)
    served.take()
    assert taken == [0, 1], "as it comes"
    assert served.end().body == b"1234" * 4
    again = post(guarded)
    assert (again.status, again.body, again.header("idempotency-replay")) == (200, b"", "omitted")
    assert app.runs == 1


@pytest.mark.parametrize("place", SQL, indirect=True)
def test_r11_a_transactional_response_over_the_limit_is_refused_and_rolled_back(place: Place) -> None:
    app = Streamed(lambda: iter([b"1234"] * 4))
    boundary = place.boundary()
    answer = post(IdempotencyMiddleware(app, boundary, response_limit=6, principal="shared"))
    assert (answer.status, answer.code, app.closed) == (501, "response-unsupported", 1)
    assert not post(IdempotencyMiddleware(app, boundary, principal="shared")).replayed


class Streamed:
    """Answers with an iterable of its own, and counts how often that is closed."""

    def __init__(self, body: Callable[[], Iterator[bytes]], headers: Iterable[tuple[str, str]] = ()) -> None:
        self.body = body
        self.headers = list(headers)
        self.runs = 0
        self.closed = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.runs += 1
        start_response("200 OK", self.headers)
        self.chunks = self.body()
        return self

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("place", LEASED, indirect=True)
def test_r17_a_client_that_leaves_gets_the_whole_response_later(place: Place) -> None:
    app = Streamed(lambda: iter([b"a", b"b", b"c", b"d"]))
    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    served = Served(guarded)
    served.take()
    served.close()
    assert app.closed == 1
    again = post(guarded)
    assert (again.body, again.replayed, app.runs) == (b"abcd", True, 1)


def test_r17_a_server_that_cannot_begin_the_response_has_recorded_it(place: Place) -> None:
    app = Streamed(lambda: iter([b"a", b"b"]))
    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")

    def gone(status: str, headers: Any, exc_info: Any = None) -> Any:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Served(lambda environ, start_response: guarded(environ, gone))
    assert app.closed == 1
    assert post(guarded).body == b"ab"


# ------------------------------------------------------------ R28: what only WSGI has


def test_r28_written_chunks_are_captured_before_returned_ones(place: Place) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [])
        write(b"a" * 70_000)
        write(b"")
        write(b"b")
        return [b"c"]

    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    assert post(guarded).body == post(guarded).body == b"a" * 70_000 + b"bc"


def test_r28_writing_after_the_return_is_refused_rather_than_lost(memory: Boundary) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [])
        yield b"a"
        write(b"b")

    with pytest.raises(RuntimeError, match="write"):
        post(IdempotencyMiddleware(app, memory, principal="shared"))


def fails_late(environ: Any, start_response: Any) -> Iterator[bytes]:
    """Begins, finds an error, and begins anew, as PEP 3333 lets it."""
    start_response("200 OK", [("X-First", "1")])
    try:
        raise ValueError("late")
    except ValueError:
        start_response("409 Conflict", [("X-Second", "1")], sys.exc_info())
    yield b"sorry"


def test_r28_exc_info_replaces_headers_that_were_not_sent(place: Place) -> None:
    guarded = IdempotencyMiddleware(fails_late, place.boundary(), principal="shared")
    for _ in range(2):
        answer = post(guarded)
        assert (answer.status, answer.body) == (409, b"sorry")
        assert (answer.header("x-first"), answer.header("x-second")) == (None, "1")


@each_row("by_write", [True, False])
def test_r28_exc_info_raises_when_headers_were_sent(place: Place, by_write: bool) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        def chunks() -> Iterator[bytes]:
            if not by_write:
                yield b"a"
            try:
                raise ValueError("late")
            except ValueError:
                start_response("500 Oh", [], sys.exc_info())
            yield b"b"

        start_response("200 OK", [])(b"a" if by_write else b"")
        return chunks()

    boundary = place.boundary()
    with pytest.raises(ValueError, match="late"):
        post(IdempotencyMiddleware(app, boundary, principal="shared"))
    assert not post(IdempotencyMiddleware(App(), boundary, principal="shared")).replayed


def test_r28_start_response_twice_is_an_error(memory: Boundary) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        start_response("200 OK", [])
        return []

    with pytest.raises(RuntimeError, match="again"):
        post(IdempotencyMiddleware(app, memory, principal="shared"))


@pytest.mark.parametrize("chunks", [[], [b"a"]])
def test_r28_a_body_without_start_response_is_an_error(memory: Boundary, chunks: list[bytes]) -> None:
    with pytest.raises(RuntimeError, match="before it called start_response"):
        post(IdempotencyMiddleware(lambda environ, start_response: chunks, memory, principal="shared"))
    assert not post(IdempotencyMiddleware(App(), memory, principal="shared")).replayed


def test_r28_a_generator_may_begin_the_response_itself(place: Place) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        yield b""
        start_response("202 Accepted", [])
        yield b""
        yield b"a"

    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    # PEP 3333 wants start_response before the first chunk of any length; servers let empty ones pass, and so do we
    assert [post(guarded).status, post(guarded).status] == [202, 202]


@pytest.mark.parametrize("place", LEASED, indirect=True)
def test_r28_a_generator_stays_lazy(place: Place) -> None:
    taken: list[int] = []

    def body() -> Iterator[bytes]:
        for number in range(5):
            taken.append(number)
            yield b"x"

    served = Served(IdempotencyMiddleware(Streamed(body), place.boundary(), principal="shared"))
    assert taken == [0, 1]
    served.take()
    assert taken == [0, 1]
    served.take()
    assert taken == [0, 1, 2]
    served.end()


def test_r28_the_returned_iterable_is_closed_once(place: Place) -> None:
    app = Streamed(lambda: iter([b"a", b"b"]))
    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    served = Served(guarded).end()
    served.close()
    post(guarded)
    assert (app.closed, app.runs) == (1, 1)


def test_r28_the_returned_iterable_is_closed_once_when_it_fails(place: Place) -> None:
    def body() -> Iterator[bytes]:
        raise ValueError("late")
        yield b""

    app = Streamed(body)
    with pytest.raises(ValueError, match="late"):
        post(IdempotencyMiddleware(app, place.boundary(), principal="shared"))
    assert app.closed == 1


def test_r28_a_file_does_not_pass_around(place: Place) -> None:
    class ServersOwn:
        def __init__(self, file: Any, size: int = 8192) -> None:
            raise AssertionError("The server would send it by itself.")

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return environ["wsgi.file_wrapper"](io.BytesIO(b"x" * 10_000))  # type: ignore[no-any-return]

    guarded = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    for _ in range(2):
        assert post(guarded, **{"wsgi.file_wrapper": ServersOwn}).body == b"x" * 10_000


def test_r28_both_sides_keep_to_pep_3333(place: Place) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        environ["wsgi.input"].read(2)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"a", b"b"]

    guarded = validator(IdempotencyMiddleware(validator(app), place.boundary(), principal="shared"))  # type: ignore[arg-type, var-annotated]
    for _ in range(2):
        served = post(guarded, SCRIPT_NAME="")
        assert (served.status, served.body) == (200, b"ab")


def test_r28_the_servers_environ_stays_and_changes_are_the_applications_own(memory: Boundary) -> None:
    errors = io.StringIO()
    app = App(during=lambda environ: environ.update({"mine": 1}))
    served = Served(IdempotencyMiddleware(app, memory, principal="shared"), **{"wsgi.errors": errors}).end()
    assert app.environ["wsgi.errors"] is errors
    assert "mine" not in served.environ


# ------------------------------------------------------------ failures


def test_r16_an_exception_is_raised_to_the_server_and_frees_the_key(place: Place) -> None:
    def during(environ: Any) -> None:
        raise ValueError("broken")

    boundary = place.boundary()
    with pytest.raises(ValueError, match="broken"):
        post(IdempotencyMiddleware(App(during=during), boundary, principal="shared"))
    app = App()
    assert not post(IdempotencyMiddleware(app, boundary, principal="shared")).replayed
    assert app.runs == 1


def test_r16_an_exception_of_an_external_effect_leaves_it_unknown(memory: Boundary) -> None:
    def during(environ: Any) -> None:
        raise SystemExit  # as gunicorn ends a worker that takes too long

    boundary = Boundary("wsgi", store="memory://", effects="external")
    with pytest.raises(SystemExit):
        post(IdempotencyMiddleware(App(during=during), boundary, principal="shared"))
    assert post(IdempotencyMiddleware(App(), boundary, principal="shared")).code == "outcome-unknown"
    boundary.close()


@each_row("status", ["500 Oh", "503 Service Unavailable"])
def test_a_5xx_is_sent_and_the_retry_runs(place: Place, status: str) -> None:
    boundary = place.boundary()
    assert post(IdempotencyMiddleware(App(status), boundary, principal="shared")).status == int(status[:3])
    assert post(IdempotencyMiddleware(App(), boundary, principal="shared")).status == 201


@each_row(("status", "stored"), [("404 Not Found", True), ("429 Too Many Requests", False)])
def test_r25_which_4xx_are_the_answer(place: Place, status: str, stored: bool) -> None:
    boundary = place.boundary()
    post(IdempotencyMiddleware(App(status), boundary, principal="shared"))
    assert (post(IdempotencyMiddleware(App(), boundary, principal="shared")).status == 404) is stored


def test_r25_a_store_that_does_not_answer_is_a_503_and_nothing_runs() -> None:
    boundary = Boundary("wsgi", store="redis://127.0.0.1:1/0")
    app = App()
    answer = post(IdempotencyMiddleware(app, boundary, principal="shared"))
    assert (answer.status, answer.code, app.runs) == (503, "store-unavailable", 0)
    assert answer.header("retry-after") == "1"
    app = App()
    answer = post(IdempotencyMiddleware(app, boundary, on_store_error="open", principal="shared"))
    assert (answer.status, answer.replayed, app.runs) == (201, False, 1)
    boundary.close()


def test_r21_a_key_whose_window_has_ended_runs_anew() -> None:
    boundary = Boundary("wsgi", store="memory://", window=0.001, lease="1s")
    app = App()
    guarded = IdempotencyMiddleware(app, boundary, principal="shared")
    post(guarded)
    while post(guarded).replayed:
        pass
    assert app.runs >= 2
    boundary.close()


# ------------------------------------------------------------ inside


def test_current_is_the_claim_also_while_chunks_are_made(place: Place) -> None:
    tokens = []

    def body() -> Iterator[bytes]:
        for _ in range(3):
            tokens.append(current().token)
            yield b"x"

    post(IdempotencyMiddleware(Streamed(body), place.boundary(), principal="shared"))
    assert len(set(tokens)) == 1


@pytest.mark.parametrize("place", SQL, indirect=True)
def test_a_transaction_is_one_with_the_work(place: Place) -> None:
    boundary = place.boundary()
    table = f"orders_{boundary.name.replace('-', '_')}"

    def work(status: str) -> App:
        def during(environ: Any) -> None:
            current().tx.execute(f"CREATE TABLE IF NOT EXISTS {table} (n INTEGER)")
            current().tx.execute(f"INSERT INTO {table} VALUES (1)")

        return App(status, during=during)

    def count() -> int:
        found: list[int] = []

        def during(environ: Any) -> None:
            found.append(current().tx.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

        post(IdempotencyMiddleware(App(during=during), boundary, principal="shared"), f"count-{len(place.seen.told)}")
        return found[0]

    assert post(IdempotencyMiddleware(work("201 Created"), boundary, principal="shared"), "one").status == 201
    assert count() == 1
    assert post(IdempotencyMiddleware(work("500 Oh"), boundary, principal="shared"), "two").status == 500
    assert post(IdempotencyMiddleware(work("404 Not Found"), boundary, principal="shared"), "three").status == 404
    assert count() == 2
    assert post(IdempotencyMiddleware(App(), boundary, principal="shared"), "three").replayed


@pytest.mark.fault(23)
@pytest.mark.parametrize("place", SQL, indirect=True)
@pytest.mark.parametrize("memory_limit", [0, 100])
def test_f23_a_transaction_that_the_database_wants_again_runs_again_with_the_same_body(
    place: Place, memory_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wanted(Exception):
        sqlstate = "40001"
        sqlite_errorcode = 5

    boundary = place.boundary()
    monkeypatch.setattr(boundary._settings.backend, "restarts", lambda error: isinstance(error, Wanted))
    closed: list[int] = []

    class Chunks:
        def __init__(self, fails: bool) -> None:
            self.fails = fails

        def __iter__(self) -> Iterator[bytes]:
            yield b"a"
            if self.fails:
                raise Wanted

        def close(self) -> None:
            closed.append(1)

    runs: list[bytes] = []

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        runs.append(environ["wsgi.input"].read())
        environ["run"] = environ.get("run", 0) + 1
        assert environ["run"] == 1, "an environ of its own for each run"
        if len(runs) == 1:
            raise Wanted
        start_response("200 OK", [])
        return Chunks(len(runs) == 2)

    guarded = IdempotencyMiddleware(app, boundary, body_memory=memory_limit, principal="shared")
    assert post(guarded, body=b"same").body == b"a"
    assert runs == [b"same"] * 3
    assert len(closed) == 2
    assert post(guarded, body=b"same").replayed


def test_r26_one_inside_another_guards_once(memory: Boundary) -> None:
    app = App()
    guarded = IdempotencyMiddleware(
        IdempotencyMiddleware(app, memory, required=True, principal="shared"), memory, principal="shared"
    )
    assert [post(guarded).replayed, post(guarded).replayed] == [False, True]


def test_status_lines() -> None:
    assert (status_line(200), status_line(299)) == ("200 OK", "299 Unknown")
