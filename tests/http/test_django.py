"""Django: the decorator and the middleware, on every store, leased and transactional."""

from __future__ import annotations

import asyncio
import gzip
import io
import logging
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, current
from tests.http import wire
from tests.http.django_site import (
    AUTHENTICATION,
    LEADING,
    MIDDLEWARE,
    PLACES,
    SQL,
    Leading,
    Site,
    code,
    opened,
    post,
    replayed,
)

from django.core.exceptions import PermissionDenied  # isort: skip
from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.files.uploadedfile import SimpleUploadedFile  # isort: skip
from django.db import DatabaseError, IntegrityError, connections, transaction  # isort: skip
from django.http import (  # isort: skip
    FileResponse,
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.template import engines  # isort: skip
from django.template.response import TemplateResponse  # isort: skip
from django.test import AsyncClient, Client  # isort: skip
from django.urls import path  # isort: skip
from django.utils.decorators import method_decorator  # isort: skip
from django.views import View  # isort: skip
from django.views.decorators.cache import never_cache  # isort: skip

from retrysafe.django.checks import check_middleware

from retrysafe.http.django import idempotent  # isort: skip
from retrysafe.http.django_serving import response_of  # isort: skip
from retrysafe.http.messages import Response  # isort: skip
from tests.tables import each_row

DOORS = ("decorator", "middleware")
LEASED = [name for name in PLACES if name not in SQL]


@pytest.fixture(params=PLACES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Every store, leased and, where it can, transactional."""
    with opened(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """A leased site, for what no store has a part in."""
    with opened("memory", tmp_path) as found:
        yield found


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Site]:
    """A transactional site on SQLite."""
    with opened("sqlite-transactional", tmp_path) as found:
        yield found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Site]:
    """A transactional site on PostgreSQL."""
    with opened("postgresql-transactional", tmp_path) as found:
        yield found


door = pytest.mark.parametrize("door", DOORS)


# ------------------------------------------------------------ keys and principals


@door
def test_k1_k2_r1_r2_runs_once_and_retries_get_the_same_response(site: Site, door: str) -> None:
    client = site.guarded(door)
    first, second = post(client), post(client, '"k"; v=1')
    assert (first.status_code, second.status_code) == (201, 201), first.content
    assert (replayed(first), replayed(second)) == (False, True)
    assert first.content == second.content
    assert second.headers["Content-Type"] == first.headers["Content-Type"]
    assert second.headers["Cache-Control"] == "no-store"
    assert site.rows() == site.runs == 1


@door
@pytest.mark.parametrize("key", ["a,b", "", '"a', "a" * 256, "caf\xe9"])
def test_k3_k4_k5_a_bad_key_is_refused(small: Site, door: str, key: str) -> None:
    answer = post(small.guarded(door), key)
    assert (answer.status_code, code(answer), small.runs) == (400, "key-invalid", 0)
    assert small.seen.names == []


@door
def test_k6_without_a_key_the_request_is_refused_or_passes(small: Site, door: str) -> None:
    answer = post(small.guarded(door), None)
    assert (answer.status_code, code(answer), small.runs) == (400, "key-missing", 0)
    assert [post(small.guarded(door, required=False), None).status_code for _ in "12"] == [201, 201]


async def test_k6_a_rule_holds_beneath_the_prefix_of_an_asgi_server(small: Site) -> None:
    small.guarded("middleware", required=False, routes={"POST /orders": "required"})
    answer = await wire.post(ASGIHandler(), None, path="/api/orders", root_path="/api")
    assert (answer.status, small.runs) == (400, 0)


@door
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
def test_k7_other_methods_pass_untouched(small: Site, door: str, method: str) -> None:
    client = small.guarded(door, methods=["POST", "PATCH"])
    assert [post(client, method=method).status_code for _ in "12"] == [201, 201]
    assert (small.runs, small.seen.names) == (2, [])


@each_row("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_k7_a_decorated_view_is_guarded_by_every_unsafe_method(small: Site, method: str) -> None:
    client = small.guarded("decorator")
    assert [replayed(post(client, method=method)) for _ in "12"] == [False, True]
    assert code(post(client, None, method=method)) == "key-missing"
    assert not replayed(post(small.guarded("middleware"), "k", method="PUT"))


@pytest.mark.slow
@door
@pytest.mark.parametrize("principal", ["user", lambda request: request.headers.get("X-User")])
def test_k8_two_principals_do_not_meet_and_nobody_is_refused(site: Site, door: str, principal: Any) -> None:
    client = site.guarded(door, principal=principal)
    for user in "12":
        assert not replayed(post(client, x_user=user))
        assert replayed(post(client, x_user=user))
    answer = post(client)
    assert (answer.status_code, code(answer), site.runs) == (403, "principal-missing", 2)


@door
def test_k9_a_refreshed_token_is_the_same_principal(small: Site, door: str) -> None:
    client = small.guarded(door, principal="user")
    assert not replayed(post(client, x_user="1", authorization="Bearer 1"))
    assert replayed(post(client, x_user="1", authorization="Bearer 2"))


def test_k8_authentication_must_stand_outside(small: Site, caplog: pytest.LogCaptureFixture) -> None:
    client = small.guarded("middleware", principal="user", settings={"MIDDLEWARE": []})
    assert post(client).status_code == 500
    assert "AuthenticationMiddleware before" in caplog.text


# ------------------------------------------------------------ fingerprints


@door
def test_f1_f6_the_same_key_for_another_request_is_refused(site: Site, door: str) -> None:
    client = site.guarded(door)
    post(client)
    for answer in (post(client, body="sofa"), post(client, path="/orders?n=2"), post(client, type="text/html")):
        assert (answer.status_code, code(answer)) == (422, "key-reused")
    assert replayed(post(client))
    assert site.runs == 1


@door
def test_f4_a_new_multipart_boundary_is_the_same_request(small: Site, door: str) -> None:
    def upload(request: HttpRequest) -> HttpResponse:
        small.runs += 1
        return HttpResponse(request.FILES["file"].read() + request.POST["name"].encode())

    client = small.guarded(door, upload)
    answers = []
    for boundary in ("aaa", "bbbbb"):
        part = f"--{boundary}\r\nContent-Disposition: form-data; "
        body = f'{part}name="name"\r\n\r\nlamp\r\n{part}name="file"; filename="a"\r\n\r\nbytes\r\n--{boundary}--\r\n'
        answers.append(post(client, body=body, type=f"multipart/form-data; boundary={boundary}"))
    assert [answer.content for answer in answers] == [b"byteslamp"] * 2
    assert (replayed(answers[1]), small.runs) == (True, 1)


def test_f1_a_form_that_was_parsed_before_the_view(small: Site) -> None:
    """CsrfViewMiddleware parses a form to find its token, so that the bytes of a multipart body are gone."""

    def upload(request: HttpRequest) -> HttpResponse:
        small.runs += 1
        return HttpResponse(request.FILES["file"].read() + request.POST["name"].encode())

    csrf = "django.middleware.csrf.CsrfViewMiddleware"
    client = small.guarded("decorator", upload, settings={"MIDDLEWARE": [csrf]})
    client.cookies["csrftoken"] = token = "t" * 32

    def send(content: bytes, key: str = "k") -> Any:
        form = {"csrfmiddlewaretoken": token, "name": "lamp", "file": SimpleUploadedFile("a", content)}
        return client.post("/orders", form, headers={"Idempotency-Key": key})

    first, second = send(b"bytes"), send(b"bytes")
    assert (first.content, second.content, replayed(second)) == (b"byteslamp", b"byteslamp", True)
    assert code(send(b"other")) == "key-reused"
    assert small.runs == 1


def test_f1_a_body_that_somebody_read_is_refused(small: Site, caplog: pytest.LogCaptureFixture) -> None:
    guarded = idempotent(small.boundary(), principal="shared")(small.create)

    def reading(request: HttpRequest) -> Any:
        request.read(1)
        return guarded(request)

    assert post(small.serve(reading)).status_code == 500
    assert "read from its stream before it could be hashed" in caplog.text


# ------------------------------------------------------------ responses


@pytest.mark.parametrize("name", [*LEASED, "postgresql-transactional", "mysql-transactional"])
@door
def test_r1_a_duplicate_meanwhile_is_told_so(name: str, door: str, tmp_path: Path) -> None:
    with opened(name, tmp_path) as site:
        running, go = threading.Event(), threading.Event()

        def slow(request: HttpRequest) -> HttpResponse:
            site.work()
            running.set()
            assert go.wait(60)
            return HttpResponse("done")

        client, answers = site.guarded(door, slow), []

        def first() -> None:
            answers.append(post(Client()))
            connections.close_all()

        thread = threading.Thread(target=first)
        thread.start()
        try:
            assert running.wait(60)
            busy = post(client)
        finally:
            go.set()
            thread.join()
        assert (busy.status_code, code(busy)) == (409, "in-progress")
        assert int(busy.headers["Retry-After"]) >= 1
        assert (answers[0].status_code, replayed(answers[0])) == (200, False)
        assert replayed(post(client))
        assert site.rows() == 1


@door
def test_r6_cookies_are_dropped_or_kept_to_the_letter(site: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        response = HttpResponse("hello")
        response.set_cookie("a", "1 2", max_age=60, httponly=True, samesite="Lax")
        response.set_cookie("b", "x", path="/b")
        response["Link"] = "</a>; rel=a, </b>; rel=b"
        return response

    client = site.guarded(door, view)
    assert len(post(client).cookies) == 2
    again = post(client)
    assert (len(again.cookies), again.headers["Link"]) == (0, "</a>; rel=a, </b>; rel=b")
    client = site.guarded(door, view, secrets=["Set-Cookie"])
    first, second = post(client), post(client)
    assert replayed(second)
    lines = [[morsel.output(header="").strip() for morsel in answer.cookies.values()] for answer in (first, second)]
    assert lines[0] == lines[1]


def test_r4_r6_lines_that_django_would_not_write_are_kept_to_the_letter() -> None:
    cookies = [b"a=1; Path=/x; Priority=High", b"a=2; Path=/y", b"not a cookie"]
    headers = [(b"set-cookie", line) for line in cookies] + [(b"link", b"<a>"), (b"link", b"<b>")]
    made = response_of(Response(200, tuple(headers), b""))
    assert [morsel.output(header="").strip().encode() for morsel in made.cookies.values()] == cookies
    assert dict(made.items()) == {"Link": "<a>, <b>"}


@door
def test_r7_empty_and_binary_bodies(site: Site, door: str) -> None:
    given = iter(
        [HttpResponse(status=204), HttpResponse(b"\x00\xff"), HttpResponse(status=303, headers={"Location": "/"})]
    )
    client = site.guarded(door, lambda request: next(given))
    for key in "abc":
        first, second = post(client, key), post(client, key)
        assert (first.status_code, first.content) == (second.status_code, second.content)
        assert replayed(second)
        assert second.headers.get("Location") == first.headers.get("Location")


@door
def test_r10_a_stream_is_captured(site: Site, door: str) -> None:
    closed: list[int] = []

    class Chunks:
        def __init__(self) -> None:
            site.work()
            self.left = [b"c", b"b", b"a"]

        def __iter__(self) -> Iterator[bytes]:
            while self.left:
                yield self.left.pop()

        def close(self) -> None:
            closed.append(1)

    client = site.guarded(door, lambda request: StreamingHttpResponse(Chunks()))
    assert post(client).getvalue() == b"abc"
    second = post(client)
    assert (second.content, replayed(second)) == (b"abc", True)
    assert (closed, site.rows()) == ([1], 1)


@door
def test_r10_a_file_is_captured_and_closed(site: Site, door: str, tmp_path: Path) -> None:
    files: list[Any] = []
    (tmp_path / "report").write_bytes(b"x" * 10_000)

    def view(request: HttpRequest) -> FileResponse:
        files.append((tmp_path / "report").open("rb"))
        return FileResponse(files[-1])

    client = site.guarded(door, view)
    first = post(client)
    assert first.getvalue() == b"x" * 10_000
    first.close()
    second = post(client)
    assert (second.content, second.headers["Content-Length"]) == (b"x" * 10_000, "10000")
    assert [file.closed for file in files] == [True]


@pytest.mark.slow
@door
@pytest.mark.parametrize("kind", ["large", "events"])
def test_r11_responses_that_cannot_be_kept_stream_or_are_refused(site: Site, door: str, kind: str) -> None:
    closed: list[int] = []

    def chunks() -> Iterator[bytes]:
        site.work()
        try:
            yield from (b"x" * 10, b"y" * 10)
        finally:
            closed.append(1)

    def view(request: HttpRequest) -> StreamingHttpResponse:
        content_type = "text/event-stream" if kind == "events" else "text/plain"
        return StreamingHttpResponse(chunks(), content_type=content_type)

    client = site.guarded(door, view, **({} if kind == "events" else {"response_limit": 15}))
    first = post(client)
    if site.transactional:
        assert (first.status_code, code(first), site.rows()) == (501, "response-unsupported", 0)
    else:
        assert first.getvalue() == b"x" * 10 + b"y" * 10
        second = post(client)
        assert (second.status_code, second.content, second.headers["Idempotency-Replay"]) == (200, b"", "omitted")
        assert (site.rows(), site.runs) == (1, 1)
    assert closed == ([] if site.transactional and kind == "events" else [1])


@door
def test_r11_a_response_that_is_there_as_a_whole_is_recorded_too(site: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        site.work()
        return HttpResponse(b"x" * 20)

    client = site.guarded(door, view, response_limit=15)
    first, second = post(client), post(client)
    if site.transactional:
        assert (first.status_code, code(first), site.rows()) == (501, "response-unsupported", 0)
    else:
        assert (first.status_code, first.content) == (200, b"x" * 20)
        assert (second.status_code, second.content, second.headers["Idempotency-Replay"]) == (200, b"", "omitted")
        assert (site.rows(), site.runs) == (1, 1)


@door
def test_r12_bodies_go_to_a_file_or_are_refused(site: Site, door: str) -> None:
    client = site.guarded(door, body_memory=10, body_limit=100_000)
    first, second = post(client, body="x" * 90_000), post(client, body="x" * 90_000)
    assert first.json()["item"] == "x" * 90_000
    assert replayed(second)
    answer = post(client, "l", body="x" * 100_001)
    assert (answer.status_code, code(answer), site.runs) == (413, "request-too-large", 1)


@door
def test_r12_a_body_that_breaks_off_is_refused(small: Site, door: str) -> None:
    client = small.guarded(door)
    answer = client.generic(
        "POST", "/orders", "lamp", headers={"Idempotency-Key": "k"}, **{"wsgi.input": io.BytesIO(b"la")}
    )
    assert (answer.status_code, code(answer), small.runs) == (400, "request-invalid", 0)


@door
def test_r15_r16_an_exception_is_a_failure_and_its_page_is_not_kept(site: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        site.work()
        if site.runs == 1:
            raise ValueError("the secret of the view")
        return site.create(request)

    client = site.guarded(door, view, settings={"DEBUG": True})
    first, second = post(client), post(client)
    assert first.status_code == 500
    assert b"the secret of the view" in first.content
    assert (second.status_code, replayed(second)) == (201, False)
    assert replayed(post(client))
    assert site.rows() == (2 if site.transactional else 3)


@door
def test_r16_an_exception_of_an_external_effect_is_unknown(small: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        raise ValueError

    client = small.guarded(door, view, small.boundary(effects="external"))
    assert post(client).status_code == 500
    answer = post(client)
    assert (answer.status_code, code(answer)) == (409, "outcome-unknown")


@door
def test_r3_a_problem_names_the_command_of_the_project(site: Site, door: str) -> None:
    client = site.guarded(door)
    post(client)
    answer = post(client, body="another")
    assert code(answer) == "key-reused"
    program = "python manage.py retrysafe" if site.store == site.alias else "retrysafe"
    assert answer.json()["operator_command"].startswith(f"{program} keys show --hash ")


@door
def test_r16_an_exception_that_is_declared_permanent_is_kept(site: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        site.work()
        raise ValueError("no such thing")

    client = site.guarded(door, view, site.boundary(permanent=ValueError))
    assert post(client).status_code == 500
    assert (code(post(client)), site.runs) == ("result-unavailable", 1)
    assert site.rows() == (0 if site.transactional else 1)


@door
def test_statuses_4xx_are_kept_5xx_and_403_are_not(site: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        site.work()
        return HttpResponse(status=int(request.body))

    client = site.guarded(door, view)
    kept = {status: [replayed(post(client, str(status), str(status))) for _ in "12"][1] for status in (422, 503, 403)}
    assert kept == {422: True, 503: False, 403: False}
    assert site.rows() == (3 if site.transactional else 5), "only a 5xx rolls back what the view did"


@door
def test_a_refusal_that_is_raised_is_an_answer_like_others(site: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        site.work()
        raise Http404 if request.body == b"404" else PermissionDenied

    client = site.guarded(door, view)
    first, second = post(client, body="404"), post(client, body="404")
    assert (first.status_code, second.status_code, replayed(second)) == (404, 404, True)
    denied = [post(client, "l", body="403") for _ in "12"]
    assert [(answer.status_code, replayed(answer)) for answer in denied] == [(403, False)] * 2
    assert site.rows() == site.runs == 3


@each_row("door", ["decorator", "middleware"])
@each_row("atomic", [True, False])
@each_row("raises", [True, False])
def test_the_key_of_a_request_does_not_decide_what_commits(
    tmp_path: Path, door: str, *, atomic: bool, raises: bool
) -> None:
    """ATOMIC_REQUESTS undoes what an exception leaves, and nothing else does, with a key as without."""
    with opened("sqlite-transactional", tmp_path, ATOMIC_REQUESTS=atomic) as site:

        def view(request: HttpRequest) -> HttpResponse:
            site.work()
            if raises:
                raise Http404
            return HttpResponse(status=404)

        client = site.guarded(door, view, required=False)
        rows = []
        for key in (None, "k"):
            before = site.rows()
            assert post(client, key).status_code == 404
            rows.append(site.rows() - before)
        assert rows == [0 if atomic and raises else 1] * 2
        assert replayed(post(client))


@each_row("door", ["decorator", "middleware"])
@each_row(
    "status, own, rows, answers",
    [
        (201, False, 0, [500, 500]),
        (303, False, 0, [500, 500]),
        (409, False, 0, [409, 409, "replayed"]),
        (201, True, 1, [201, 201, "replayed"]),
    ],
)
def test_no_response_is_recorded_for_rows_that_django_rolled_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, door: str, status: int, own: bool, rows: int, answers: list[Any]
) -> None:
    """Under ATOMIC_REQUESTS an error that the view swallows undoes it without a word, unless it has its own block."""
    caplog.clear()
    with opened("sqlite-transactional", tmp_path, ATOMIC_REQUESTS=True) as site:
        block = transaction.atomic if own else transaction.mark_for_rollback_on_error  # the latter as Model.save() does

        def view(request: HttpRequest) -> HttpResponse:
            site.work()
            with suppress(IntegrityError), block(using=site.alias):
                site.execute("INSERT INTO goods (value) VALUES (%s)", f"{site.runs}")
            return HttpResponse(status=status, headers={"Location": "/orders/1"})

        client = site.guarded(door, view)
        first, second = post(client), post(client)
        replays = ["replayed"] if replayed(second) else []
        assert ([first.status_code, second.status_code, *replays], site.rows()) == (answers, rows)
        assert (500 in answers) == ("put transaction.atomic() around it" in caplog.text)


@door
@each_row("writes", [True, False])
@each_row("asked", ["around it", "the view"])
@each_row("effects", ["transactional", "keyed", "external"])
def test_r33_only_who_has_done_nothing_is_sent_to_log_in(
    tmp_path: Path, door: str, effects: Any, asked: str, *, writes: bool
) -> None:
    with opened("sqlite-transactional", tmp_path) as site:

        def view(request: HttpRequest) -> HttpResponse:
            if writes:
                site.work()
            return HttpResponseRedirect("/enter?next=/orders" if asked == "the view" else "/receipt?next=/orders")

        def guarded(request: HttpRequest) -> HttpResponse:
            if asked == "around it" and not request.user.is_authenticated:
                return HttpResponseRedirect("/enter?next=/orders")
            return view(request)

        options: dict[str, Any] = {"principal": "shared", "settings": {"LOGIN_URL": "/enter"}}
        client = site.guarded(door, guarded, site.boundary(effects=effects), **options)
        freed = effects != "external" and (asked == "around it" or not (writes and effects == "transactional"))
        assert [replayed(post(client)) for _ in "12"] == [False, not freed]
        served = post(client, "other", x_user="1")
        again = post(client, "other", x_user="1")
        assert (served.status_code, replayed(again)) == (302, asked == "around it" or not freed)


def test_r16_an_exception_of_a_middleware_inside_counts(site: Site) -> None:
    client = site.serve(
        MIDDLEWARE=[MIDDLEWARE, "tests.http.test_django.Failing"],
        RETRYSAFE={"BOUNDARY": site.boundary(), "PRINCIPAL": "shared"},
    )
    assert post(client).status_code == 500
    assert not replayed(post(client))
    assert site.rows() == (0 if site.transactional else 2)
    assert "ZeroDivisionError" in {str(told.fields.get("error_type")) for told in site.seen.told}


@each_row("status", [200, 303, 409])
def test_an_exception_that_a_middleware_inside_answers_keeps_no_rows(tmp_path: Path, status: int) -> None:
    """The answer is stored, as with ATOMIC_REQUESTS it is given without a key."""
    with opened("sqlite-transactional", tmp_path, ATOMIC_REQUESTS=True) as site:

        def view(request: HttpRequest) -> HttpResponse:
            site.work()
            raise ValueError(status)

        client = site.serve(
            view,
            MIDDLEWARE=[MIDDLEWARE, "tests.http.test_django.Answering"],
            RETRYSAFE={"BOUNDARY": site.boundary(), "PRINCIPAL": "shared"},
        )
        answers = [post(client, key) for key in (None, "k", "k")]
        assert [answer.status_code for answer in answers] == [status] * 3
        assert replayed(answers[2])
        assert site.rows() == 0


class Answering:
    """A middleware that answers what a view raises."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse:
        return HttpResponse(status=error.args[0], headers={"Location": "/"})


class Failing:
    """A middleware that raises when the view has done its work."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        self.get_response(request)
        raise ZeroDivisionError


@door
def test_templates_are_rendered_inside(site: Site, door: str) -> None:
    def view(request: HttpRequest) -> TemplateResponse:
        site.work()
        template = engines.all()[0].from_string("{{ order }}{% if fail %}{% now %}{% endif %}".replace("{% now %}", ""))
        return TemplateResponse(request, template, {"order": lambda: current().token and "lamp"})

    templates = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
    client = site.guarded(door, view, settings={"TEMPLATES": templates})
    first, second = post(client), post(client)
    assert (first.content, second.content, replayed(second)) == (b"lamp", b"lamp", True)


@door
def test_r25_store_down(small: Site, door: str) -> None:
    boundary = small.boundary(store="redis://127.0.0.1:9")
    answer = post(small.guarded(door, boundary=boundary))
    assert (answer.status_code, code(answer), answer.headers["Retry-After"]) == (503, "store-unavailable", "1")
    assert post(small.guarded(door, boundary=boundary, on_store_error="open")).status_code == 201
    assert small.runs == 1


def test_r26_compression_and_conditions_stand_outside(site: Site) -> None:
    outside = [
        "django.middleware.gzip.GZipMiddleware",
        "django.middleware.http.ConditionalGetMiddleware",
        "django.middleware.common.CommonMiddleware",
        AUTHENTICATION,
    ]
    client = site.guarded("middleware", settings={"MIDDLEWARE": outside})
    first = post(client, body="x" * 1000, accept_encoding="gzip")
    second = post(client, body="x" * 1000)
    assert gzip.decompress(first.content) == second.content
    assert replayed(second)
    assert "Content-Encoding" not in second.headers


def test_csrf_failures_free_the_key(site: Site) -> None:
    csrf = "django.middleware.csrf.CsrfViewMiddleware"
    client = site.guarded("middleware", settings={"MIDDLEWARE": [csrf]})
    assert post(client).status_code == 403
    client.cookies["csrftoken"] = "t" * 32
    assert [replayed(post(client, x_csrftoken="t" * 32)) for _ in "12"] == [False, True]
    assert site.rows() == 1


# ------------------------------------------------------------ for the view


@door
def test_the_claim_is_within_reach(site: Site, door: str) -> None:
    def view(request: Any) -> HttpResponse:
        assert request.idempotency is current()
        return HttpResponse(current().key_for("bank"))

    client = site.guarded(door, view)
    assert len(post(client).content) > 10


def test_one_guard_inside_another_claims_once(site: Site) -> None:
    inner = idempotent(site.boundary(), principal="shared")(site.create)
    client = site.guarded("middleware", inner, required=False)
    assert [replayed(post(client)) for _ in "12"] == [False, True]
    assert site.seen.names.count("completed") == 1
    assert code(post(client, None)) == "key-missing"


@pytest.mark.parametrize("kind", ["function", "dispatch", "method", "around", "async"])
def test_k8_the_middleware_leaves_views_that_guard_themselves_to_their_own_guard(small: Site, kind: str) -> None:
    """The view knows whose request it is: what it gave to one is not replayed to another."""
    mine = idempotent(small.boundary(), principal="user")

    class Orders(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            return small.create(request)

        patch = post

    async def asynchronous(request: HttpRequest) -> HttpResponse:
        small.runs += 1
        return HttpResponse()

    views = {
        "function": lambda: never_cache(mine(small.create)),
        "dispatch": lambda: method_decorator(mine, name="dispatch")(Orders).as_view(),
        "method": lambda: method_decorator(mine, name="post")(Orders).as_view(),
        "around": lambda: mine(Orders.as_view()),
        "async": lambda: mine(asynchronous),
    }
    client = small.guarded("middleware", views[kind](), methods=["POST", "PATCH"], required=False)
    assert [replayed(post(client, x_user=user)) for user in "1122"] == [False, True] * 2
    assert (post(client).status_code, code(post(client))) == (403, "principal-missing")
    assert small.runs == 2
    answers = [post(client, "p", method="PATCH", x_user=user) for user in "12"]
    assert [replayed(answer) for answer in answers] == [False, kind == "method"]  # which alone is the middleware's


def test_a_guard_that_the_middleware_cannot_see_is_refused(small: Site, caplog: pytest.LogCaptureFixture) -> None:
    own = idempotent(small.boundary(), principal="user")(small.create)
    Leading.to(own)
    around, settings = [AUTHENTICATION, MIDDLEWARE], {"BOUNDARY": small.boundary(), "PRINCIPAL": "shared"}
    for view, inside in ((lambda request: own(request), []), (small.create, [LEADING])):
        client = small.serve(view, MIDDLEWARE=[*around, *inside], RETRYSAFE=settings)
        assert [post(client, x_user=user).status_code for user in "12"] == [500, 500]
        assert "must use functools.wraps" in caplog.text
        caplog.clear()
    assert small.runs == 0


def test_classes_and_urls(site: Site) -> None:
    @method_decorator(idempotent(site.boundary(), principal="shared"), name="dispatch")
    class Orders(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("read")

        def post(self, request: HttpRequest) -> HttpResponse:
            return site.create(request)

    class Methods(Orders.__base__):  # type: ignore[name-defined,misc]
        @method_decorator(idempotent(site.boundary(), principal="shared"))
        def post(self, request: HttpRequest) -> HttpResponse:
            return site.create(request)

    class Plain(View):
        def post(self, request: HttpRequest, name: str) -> HttpResponse:
            return site.create(request)

    around = idempotent(site.boundary(), principal="shared")(Plain.as_view())
    client = site.serve(Orders.as_view(), path("methods", Methods.as_view()), path("plain/<name>", around))
    assert client.get("/orders").content == b"read"
    for where in ("/orders", "/methods", "/plain/lamp"):
        assert [replayed(post(client, path=where)) for _ in "12"] == [False, True], where
    assert site.rows() == 3


def test_settings_are_checked(small: Site) -> None:
    def starting(guard: Any, **settings: Any) -> Client:
        client = small.serve(MIDDLEWARE=[MIDDLEWARE], RETRYSAFE=guard, **settings)
        post(client)
        return client

    boundary = small.boundary()
    for guard, text in (
        (None, "needs the setting RETRYSAFE"),
        ({"REQUIRED": True}, "needs the setting RETRYSAFE"),
        ({"BOUNDARY": "nowhere.boundary"}, "cannot be imported"),
        ({"BOUNDARY": "os.path"}, "not a Boundary"),
        ({"BOUNDARY": boundary, "PRINCIPAL": "shared", "MISMATCH": 1}, "mismatch= is no option"),
        ({"BOUNDARY": boundary, "PRINCIPAL": 7}, "7 finds none"),
        ({"BOUNDARY": boundary}, '"PRINCIPAL": "user"'),
    ):
        with pytest.raises(ConfigurationError, match=text):
            starting(guard)
    starting({"BOUNDARY": "tests.http.test_django.by_path", "PRINCIPAL": "tests.http.test_django.anybody"})


def test_the_system_check_reports_a_guard_that_cannot_be_built(small: Site) -> None:
    guard = {"BOUNDARY": small.boundary()}
    small.settings(MIDDLEWARE=[AUTHENTICATION, MIDDLEWARE], RETRYSAFE=guard)
    (found,) = check_middleware()
    assert (found.id, '"PRINCIPAL": "user"' in found.msg) == ("retrysafe.E001", True)
    small.settings(MIDDLEWARE=[MIDDLEWARE], RETRYSAFE={**guard, "PRINCIPAL": "shared"})
    assert not [*check_middleware()]


by_path = Boundary("by path", store="memory://")


def anybody(request: HttpRequest) -> str:
    return "anybody"


def test_a_transaction_that_is_not_djangos_is_refused(tmp_path: Path) -> None:
    boundary = Boundary("elsewhere", store=f"sqlite:///{tmp_path / 'a.db'}", effects="transactional")
    with pytest.raises(ConfigurationError, match="alias of Django's DATABASES"):
        idempotent(boundary, principal="shared")
    boundary.close()


# ------------------------------------------------------------ transactions


@pytest.fixture(params=SQL)
def sql(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """The transactional sites."""
    with opened(request.param, tmp_path) as found:
        yield found


@door
def test_hooks_run_after_the_commit_and_not_on_replays(sql: Site, door: str) -> None:
    seen: list[tuple[int, bool]] = []

    def view(request: HttpRequest) -> HttpResponse:
        sql.work()
        hook = lambda: seen.append((sql.rows(), connections[sql.alias].in_atomic_block))  # noqa: E731
        transaction.on_commit(hook, using=sql.alias)
        assert seen == []
        return HttpResponse("done")

    client = sql.guarded(door, view)
    assert post(client).content == b"done"
    assert seen == [(1, False)]
    assert replayed(post(client))
    assert len(seen) == 1


@door
def test_a_hook_that_fails_does_not_undo_the_commit(sql: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        sql.work()
        transaction.on_commit(lambda: 1 / 0, using=sql.alias)
        return HttpResponse("done")

    client = sql.guarded(door, view)
    assert post(client).status_code == 500
    assert (replayed(post(client)), sql.rows()) == (True, 1)


@each_row("atomic", [False, True])
@each_row("status", [409, 201])
@door
def test_a_statement_of_a_raw_cursor_that_fails_ends_the_work_of_the_view(
    door: str, status: int, tmp_path: Path, *, atomic: bool
) -> None:
    """Django does not mark the transaction then, as it does for the ORM; PostgreSQL takes no more in it."""
    with opened("postgresql-transactional", tmp_path, ATOMIC_REQUESTS=atomic) as site:

        def view(request: HttpRequest) -> HttpResponse:
            site.work()
            with suppress(DatabaseError):
                site.execute("SELECT 1 / 0")
            return HttpResponse("caught", status=status)

        client = site.guarded(door, view)
        stored = status == 409
        answers = [post(client) for _ in "12"]
        assert [answer.status_code for answer in answers] == [409 if stored else 500] * 2
        assert (replayed(answers[1]), site.runs, site.rows()) == (stored, 1 if stored else 2, 0)


RESTARTS = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$",
    "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'again'",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RESTARTS)
@each_row("left", ["as it is", "as a 403"])
@door
def test_a_transaction_that_the_database_wants_again(
    kind: str, door: str, left: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(f"{kind}-transactional", tmp_path) as site:
        items: list[str] = []
        handlers: list[Any] = []

        def view(request: HttpRequest) -> HttpResponse:
            handlers.extend(request.upload_handlers)
            items.append(request.POST["item"] + request.FILES["file"].read().decode())
            site.work()
            try:
                if site.runs < 3:
                    site.execute(RESTARTS[kind])
            except DatabaseError as error:
                if left == "as a 403":
                    raise PermissionDenied from error
                raise
            return HttpResponse(request.POST["item"])

        client = site.guarded(door, view)
        form = {"item": "lamp", "file": SimpleUploadedFile("a", b"bytes")}
        with caplog.at_level(logging.WARNING):
            answer = client.post("/orders", form, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, answer.content) == (200, b"lamp"), answer.content
        assert items == ["lampbytes"] * 3
        assert len(handlers) == len({id(handler) for handler in handlers})
        assert (site.rows(), site.seen.names.count("restarted")) == (1, 2)
        assert "Internal Server Error" not in caplog.text

        site.runs = -100
        exhausted = client.post("/orders", form | {"item": "sofa"}, headers={"Idempotency-Key": "l"})
        assert (exhausted.status_code, code(exhausted), site.rows()) == (503, "store-unavailable", 1)


@door
@pytest.mark.parametrize("atomic", ["transactional", "leased"])
def test_atomic_requests_end_before_the_record(door: str, atomic: str, tmp_path: Path) -> None:
    name = "postgresql-transactional" if atomic == "transactional" else "postgresql"
    with opened(name, tmp_path, ATOMIC_REQUESTS=True) as site:
        inside: list[bool] = []
        committed: list[int] = []

        def view(request: HttpRequest) -> HttpResponse:
            inside.append(connections[site.alias].in_atomic_block)
            transaction.on_commit(lambda: committed.append(site.runs), using=site.alias)
            response = site.create(request)
            if request.body == b"fail":
                raise ValueError
            return response

        client = site.guarded(door, view)
        assert post(client, body="fail").status_code == 500
        assert (site.rows(), committed) == (0, [])
        assert [replayed(post(client, "l")) for _ in "12"] == [False, True]
        assert (site.rows(), committed) == (1, [2])
        assert post(client, method="GET").status_code == 201
        assert inside == [True] * 3


@each_row("outside", [True, False])
def test_atomic_requests_stay_away_from_views_that_are_exempt(outside: bool, tmp_path: Path) -> None:
    with opened("postgresql", tmp_path, ATOMIC_REQUESTS=True) as site:
        inside: list[bool] = []

        def view(request: HttpRequest) -> HttpResponse:
            inside.append(connections[site.alias].in_atomic_block)
            return HttpResponse()

        exempt, guard = (
            transaction.non_atomic_requests(using=site.alias),
            idempotent(site.boundary(), principal="shared"),
        )
        client = site.serve(exempt(guard(view)) if outside else guard(exempt(view)))
        post(client)
        post(client, method="GET")
        assert inside == [False, False]


@pytest.mark.parametrize("name", ["postgresql", "postgresql-transactional", "redis"])
def test_a_transaction_around_the_claim_is_refused(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(name, tmp_path, ATOMIC_REQUESTS=True) as site:

        class Orders(View):
            @method_decorator(idempotent(site.boundary(), principal="shared"))
            def post(self, request: HttpRequest) -> HttpResponse:
                return site.create(request)

        assert post(site.serve(Orders.as_view())).status_code == 500
        assert "method_decorator(…, name='dispatch')" in caplog.text
        assert site.runs == 0


@door
def test_a_commit_by_the_view_fails_it(sql: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        sql.work()
        if request.body == b"commit":
            transaction.commit(using=sql.alias)
        else:
            transaction.set_autocommit(True, using=sql.alias)
        return HttpResponse()

    client = sql.guarded(door, view)
    assert [post(client, body, body).status_code for body in ("commit", "autocommit")] == [500, 500]
    assert sql.rows() == 0


@door
def test_a_commit_by_sql_is_noticed(server: Site, door: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        server.work()
        server.execute("COMMIT")
        return HttpResponse("done")

    client = server.guarded(door, view)
    assert [code(post(client)) for _ in "12"] == ["outcome-unknown"] * 2
    assert server.runs == 1


# ------------------------------------------------------------ async


def test_async_views_cannot_be_transactional(whole: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="async view"):
        idempotent(whole.boundary(), principal="shared")(view)
    assert post(whole.guarded("middleware", view)).status_code == 500
    assert "Make the view sync" in caplog.text

    class Orders(View):
        post = view

    hidden = method_decorator(idempotent(whole.boundary(), principal="shared"), name="dispatch")(Orders)
    assert post(whole.serve(hidden.as_view())).status_code == 500


def test_a_middleware_that_moves_to_another_thread_is_refused(whole: Site, caplog: pytest.LogCaptureFixture) -> None:
    client = whole.serve(
        MIDDLEWARE=[MIDDLEWARE, "tests.http.test_django.Moving"],
        RETRYSAFE={"BOUNDARY": whole.boundary(), "PRINCIPAL": "shared"},
    )
    assert post(client).status_code == 500
    assert "runs in another thread" in caplog.text
    assert (whole.runs, whole.rows()) == (0, 0)


class Moving:
    """A middleware that runs the rest in another thread."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(self.get_response(request)))
        thread.start()
        thread.join()
        return found[0]


@each_row("place", ["memory", "sqlite"])
def test_an_async_class_is_guarded_by_its_method_or_around_it(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ``dispatch`` is a plain function that returns a coroutine: it answers 500, and the log names the two."""
    with opened(place, tmp_path) as site:
        mine = idempotent(site.boundary(), principal="shared")

        class Orders(View):
            async def post(self, request: HttpRequest) -> HttpResponse:
                site.runs += 1
                return HttpResponse()

        def guarded(name: str) -> Any:
            return method_decorator(mine, name=name)(type(name, (Orders,), {})).as_view()

        site.serve(guarded("dispatch"), path("method", guarded("post")), path("around", mine(Orders.as_view())))

        async def ask(where: str) -> Any:
            client = AsyncClient(raise_request_exception=False)
            return await client.generic("POST", where, "lamp", headers={"Idempotency-Key": where})

        for number, where in enumerate(("/method", "/around"), 1):
            assert [replayed(asyncio.run(ask(where))) for _ in "12"] == [False, True]
            assert site.runs == number
        assert (asyncio.run(ask("/orders")).status_code, site.runs) == (500, 2)
        assert "async def post, or " in caplog.text


@pytest.mark.parametrize("kind", ["sync", "async"])
@door
async def test_under_asgi(site: Site, door: str, kind: str) -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        assert current().token
        site.runs += 1
        return HttpResponse(b"done")

    if kind == "async" and site.transactional:
        return  # refused
    await asyncio.to_thread(site.guarded, door, view if kind == "async" else None)
    client = AsyncClient(raise_request_exception=False)
    answers = [await client.generic("POST", "/orders", "lamp", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert answers[0].status_code in (200, 201), answers[0].content
    assert [replayed(answer) for answer in answers] == [False, True]
    assert answers[0].content == answers[1].content
    assert site.runs == 1
    if kind == "sync":
        assert await asyncio.to_thread(site.rows) == 1


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
async def test_a_sync_stream_stays_one_under_asgi(site: Site) -> None:
    """GZipMiddleware makes a gzip of each chunk of an async one, of which curl and httpx read the first alone."""
    await asyncio.to_thread(
        site.serve,
        lambda request: StreamingHttpResponse(iter([b"one", b"two"])),
        MIDDLEWARE=["django.middleware.gzip.GZipMiddleware", MIDDLEWARE],
        RETRYSAFE={"BOUNDARY": site.boundary(), "PRINCIPAL": "shared"},
    )
    headers = {"Idempotency-Key": "k", "Accept-Encoding": "gzip"}
    first: Any = await AsyncClient().generic("POST", "/orders", "lamp", headers=headers)
    whole = zlib.decompressobj(zlib.MAX_WBITS | 16)
    assert whole.decompress(b"".join([chunk async for chunk in first])) == b"onetwo"
