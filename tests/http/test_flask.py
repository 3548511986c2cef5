"""The Flask extension: views, blueprints, authentication, errors, sessions, streams."""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import flask_login
import pytest
from flask import Blueprint, Flask, Response, abort, g, jsonify, request, send_file, session, stream_with_context
from flask.testing import FlaskClient
from flask.views import MethodView
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import scoped_session, sessionmaker

from retrysafe import Boundary, ConfigurationError, current
from retrysafe.backends.registry import connect
from retrysafe.http.flask import Idempotency, idempotent
from tests.http.conftest import Place
from tests.http.gateway import Served
from tests.http.observing import Recorder
from tests.tables import each_row

SQL = ["sqlite-transactional", "postgresql-transactional"]
LEASED = ["memory", "sqlite", "postgresql", "redis"]


@pytest.fixture
def memory() -> Iterator[Boundary]:
    made = Boundary("flask", store="memory://")
    yield made
    made.close()


class Shop:
    """An application whose views count their runs."""

    def __init__(self) -> None:
        self.app = Flask("shop")
        self.app.secret_key = "s"
        self.runs = 0

    def view(self, rule: str = "/orders", **options: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Register a view for POST that counts."""

        def register(answer: Callable[[], Any]) -> Callable[[], Any]:
            def view() -> Any:
                self.runs += 1
                return answer()

            self.app.add_url_rule(rule, answer.__name__, view, methods=["POST"], **options)
            return view

        return register

    @property
    def client(self) -> FlaskClient:
        return self.app.test_client()


@pytest.fixture
def shop() -> Shop:
    return Shop()


def orders(shop: Shop) -> None:
    @shop.view()
    def order() -> Any:
        return jsonify(order=shop.runs, body=request.get_json(silent=True)), 201, {"X-Order": "1"}


def post(app: Any, key: str | None = "k", path: str = "/orders", **more: Any) -> Any:
    client = app.client if isinstance(app, Shop) else app
    headers = {**({} if key is None else {"Idempotency-Key": key}), **more.pop("headers", {})}
    return client.post(
        path, headers=headers, buffered=True, **({"json": {"a": 1}} | more if not {"data"} & more.keys() else more)
    )


def replayed(answer: Any) -> bool:
    return bool(answer.headers.get("Idempotent-Replayed") == "true")


# ------------------------------------------------------------ the whole application


def test_r2_a_retry_gets_the_response_of_the_first(shop: Shop, place: Place) -> None:
    orders(shop)
    Idempotency(shop.app, place.boundary(), principal="shared")
    first, second = post(shop), post(shop)
    assert (first.status_code, first.json, replayed(first)) == (201, {"order": 1, "body": {"a": 1}}, False)
    assert (second.status_code, second.data, second.headers["X-Order"]) == (201, first.data, "1")
    assert replayed(second)
    assert shop.runs == 1


def test_f6_another_request_with_the_key_is_refused(shop: Shop, place: Place) -> None:
    orders(shop)
    Idempotency(shop.app, place.boundary(), principal="shared")
    post(shop)
    answer = post(shop, json={"a": 2})
    assert (answer.status_code, answer.json["code"], answer.mimetype) == (422, "key-reused", "application/problem+json")
    assert shop.runs == 1


def test_views_that_are_registered_later_are_guarded(shop: Shop, memory: Boundary) -> None:
    extension = Idempotency(required=True, principal="shared")
    extension.init_app(shop.app, memory)
    orders(shop)
    assert post(shop, None).json["code"] == "key-missing"
    assert [replayed(post(shop)), replayed(post(shop))] == [False, True]


def test_k4_a_bad_key_is_refused_before_the_body_is_read(shop: Shop, memory: Boundary) -> None:
    class Unread(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise AssertionError("The body was read.")

    orders(shop)
    Idempotency(shop.app, memory, principal="shared")
    served = Served(shop.app, "a,b", **{"wsgi.input": Unread()}).end()
    assert (served.status, served.code, shop.runs) == (400, "key-invalid", 0)


def test_k6_routes_by_path(shop: Shop, memory: Boundary) -> None:
    orders(shop)
    Idempotency(shop.app, memory, routes={"POST /orders": "required"}, principal="shared")
    assert post(shop, None).status_code == 400
    assert post(shop).status_code == 201


def test_requests_without_a_view_are_not_guarded(shop: Shop, memory: Boundary) -> None:
    @shop.view("/slash/")
    def slashed() -> str:
        return "ok"

    Idempotency(shop.app, memory, required=True, principal="shared")
    assert post(shop, None, "/nowhere").status_code == 404
    assert shop.client.put("/slash/").status_code == 405
    assert post(shop, "other", "/slash").status_code == 308
    assert post(shop, "other", "/slash/").status_code == 200, "a client that follows keeps the key"


def test_r26_after_request_functions_see_replays_and_refusals_and_what_they_add_is_not_stored(
    shop: Shop, memory: Boundary
) -> None:
    orders(shop)
    Idempotency(shop.app, memory, principal="shared")
    seen: list[str] = []

    @shop.app.after_request
    def outside(response: Response) -> Response:
        seen.append(response.headers.get("X-Trace", ""))
        response.headers["X-Trace"] = secrets.token_hex(4)
        response.set_data(response.get_data() + b"!")
        return response

    first, second, third = post(shop), post(shop), post(shop, json={})
    assert seen == ["", "", ""]
    assert first.data == second.data
    assert first.data.count(b"!") == 1
    assert first.headers["X-Trace"] != second.headers["X-Trace"]
    assert third.status_code == 422


def test_r6_the_session_is_saved_around_and_never_stored(shop: Shop, memory: Boundary) -> None:
    @shop.view()
    def order() -> str:
        session["seen"] = 1
        return "ok"

    Idempotency(shop.app, memory, principal="shared")
    assert "Set-Cookie" in post(shop).headers
    assert "Set-Cookie" not in post(shop).headers


# ------------------------------------------------------------ authentication


def test_r26_clients_refused_before_the_view_see_no_replay(shop: Shop, memory: Boundary) -> None:
    orders(shop)

    @shop.app.before_request
    def authenticate() -> Any:
        g.user = request.headers.get("Authorization")
        return None if g.user else ("who?", 401)

    Idempotency(shop.app, memory, principal=lambda request: g.user)
    assert post(shop, headers={"Authorization": "ann"}).status_code == 201
    assert post(shop).status_code == 401
    assert not replayed(post(shop, headers={"Authorization": "bob"}))
    assert replayed(post(shop, headers={"Authorization": "ann"}))


def with_login(app: Flask) -> None:
    manager = flask_login.LoginManager(app)

    class User(flask_login.UserMixin):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.id = name

    @manager.request_loader  # type: ignore[untyped-decorator]
    def load(asked: Any) -> User | None:
        name = asked.headers.get("Authorization")
        return None if name is None else User(name)


def test_k8_flask_login_beneath_login_required(shop: Shop, memory: Boundary) -> None:
    with_login(shop.app)
    Idempotency(shop.app, memory, principal=lambda request: flask_login.current_user.get_id())

    @shop.app.post("/orders")
    @flask_login.login_required  # type: ignore[untyped-decorator]
    @idempotent
    def order() -> str:
        shop.runs += 1
        return str(flask_login.current_user.id)

    ann, bob = ({"Authorization": name} for name in ("ann", "bob"))
    assert [post(shop, headers=who).text for who in (ann, bob, ann)] == ["ann", "bob", "ann"]
    assert shop.runs == 2
    assert post(shop).status_code == 401, "asked before the key is looked at"
    assert post(shop, None, headers=ann).json["code"] == "key-missing"


def test_k8_nobody_is_refused(shop: Shop, memory: Boundary) -> None:
    with_login(shop.app)
    orders(shop)
    Idempotency(shop.app, memory, principal=lambda request: flask_login.current_user.get_id())
    answer = post(shop)
    assert (answer.status_code, answer.json["code"], shop.runs) == (403, "principal-missing", 0)


# ------------------------------------------------------------ views and blueprints


def test_k6_views_say_what_they_need(shop: Shop, memory: Boundary) -> None:
    @shop.app.post("/required")
    @idempotent
    def required() -> str:
        return "ok"

    @shop.app.put("/optional")
    @idempotent("optional")
    def optional() -> str:
        return "ok"

    @shop.app.post("/off")
    @idempotent("off")
    def off() -> str:
        return "ok"

    Idempotency(shop.app, memory, required=True, routes={"/**": "required"}, principal="shared")
    assert post(shop, None, "/required").status_code == 400
    assert post(shop, "k", "/required").status_code == 200
    keys = {"Idempotency-Key": "o"}
    assert [replayed(shop.client.put("/optional", headers=keys)) for _ in range(2)] == [False, True]
    assert shop.client.put("/optional").status_code == 200
    assert [replayed(post(shop, "f", "/off")) for _ in range(2)] == [False, False]
    assert post(shop, '"broken', "/off").status_code == 200


def test_a_view_has_options_a_boundary_and_a_principal_of_its_own(shop: Shop, memory: Boundary) -> None:
    other = Boundary("other", store="memory://")

    @shop.app.post("/orders")
    @idempotent("optional", boundary=other, principal=lambda request: request.headers["X-Who"], mismatch_status=409)
    def order() -> str:
        return current().boundary

    Idempotency(shop.app, memory, principal="shared")
    assert post(shop, headers={"X-Who": "ann"}).text == "other"
    assert post(shop, headers={"X-Who": "ann"}, json={}).status_code == 409
    assert not replayed(post(shop, headers={"X-Who": "bob"}))
    other.close()


def test_method_views(shop: Shop, memory: Boundary) -> None:
    class Orders(MethodView):
        decorators = (idempotent,)

        def get(self) -> str:
            return "all"

        def post(self) -> str:
            return "one"

    shop.app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    Idempotency(shop.app, memory, principal="shared")
    assert shop.client.get("/orders").text == "all"
    assert post(shop, None).status_code == 400
    assert [replayed(post(shop)), replayed(post(shop))] == [False, True]


def test_k8_a_method_of_a_class_keeps_what_was_said_of_it(shop: Shop, memory: Boundary) -> None:
    class Orders(MethodView):
        @idempotent("optional", principal=lambda request: request.headers["X-Who"])
        def post(self) -> str:
            shop.runs += 1
            return str(shop.runs)

        def patch(self) -> str:
            return "patched"

    shop.app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    Idempotency(shop.app, memory, principal="shared")
    assert [post(shop, headers={"X-Who": who}).text for who in ("ann", "bob", "ann")] == ["1", "2", "1"]
    assert [replayed(shop.client.patch("/orders", headers={"Idempotency-Key": "p"})) for _ in range(2)] == [False, True]


def test_a_decorator_that_is_not_seen_is_named(shop: Shop, memory: Boundary) -> None:
    shop.app.testing = True

    @idempotent
    @shop.app.post("/above")
    def above() -> str:
        return "ok"

    def hiding(view: Callable[[], str]) -> Callable[[], str]:
        return lambda: view()

    @idempotent
    def hidden() -> str:
        return "ok"

    shop.app.add_url_rule("/hidden", "hidden", hiding(hidden), methods=["POST"])
    Idempotency(shop.app, memory, principal="shared")
    with pytest.raises(ConfigurationError, match="beneath"):
        post(shop, None, "/above")
    with pytest.raises(ConfigurationError, match="wraps"):
        post(shop, "k", "/hidden")
    assert post(shop, None, "/hidden").status_code == 400


def test_k6_blueprints_say_what_their_views_need(shop: Shop, memory: Boundary) -> None:
    outer, inner = Blueprint("outer", "outer"), Blueprint("inner", "inner")
    for blueprint in (outer, inner):
        blueprint.add_url_rule(f"/{blueprint.name}", "view", lambda: "ok", methods=["POST"])

    @inner.post("/own")
    @idempotent("required")
    def own() -> str:
        return "ok"

    outer.register_blueprint(idempotent("off")(inner))
    Idempotency(shop.app, memory, principal="shared")
    shop.app.register_blueprint(idempotent("required")(outer), url_prefix="/api")
    orders(shop)
    assert post(shop, None, "/api/outer").status_code == 400
    assert post(shop, None, "/api/inner").status_code == 200
    assert [replayed(post(shop, "i", "/api/inner")) for _ in range(2)] == [False, False]
    assert post(shop, None, "/api/own").status_code == 400
    assert post(shop, None).status_code == 201


@each_row(
    ("said", "named"),
    [
        (lambda: idempotent("always"), "always"),
        (lambda: idempotent("optional", key_syntax="loose"), "key_syntax"),
        (lambda: idempotent(required=True), "required"),
        (lambda: Idempotency(key_policy="x", principal="shared"), "key_policy"),  # type: ignore[arg-type]
        (lambda: Idempotency(Flask("a"), principal="shared"), "boundary"),
    ],
)
def test_rules_that_cannot_be_kept_are_refused_at_once(said: Callable[[], Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        made = said()
        if callable(made):
            made(lambda: "ok")


def test_an_application_has_one_and_a_decorated_view_needs_it(shop: Shop, memory: Boundary) -> None:
    shop.app.testing = True

    @shop.app.post("/orders")
    @idempotent
    def order() -> str:
        return "ok"

    with pytest.raises(ConfigurationError, match="Idempotency"):
        post(shop)
    shop = Shop()
    Idempotency(shop.app, memory, principal="shared")
    with pytest.raises(ConfigurationError, match="already"):
        Idempotency(shop.app, memory, principal="shared")


# ------------------------------------------------------------ errors


@pytest.mark.parametrize(("status", "kept"), [(404, True), (429, False), (503, False)])
def test_r25_answers_of_error_handlers_are_the_answer(shop: Shop, place: Place, status: int, kept: bool) -> None:
    class Sold(Exception):
        pass

    @shop.app.errorhandler(Sold)
    def sold(error: Sold) -> Any:
        return jsonify(error="sold"), status

    @shop.view()
    def order() -> Any:
        if shop.runs == 1:
            raise Sold
        return "ok"

    @shop.view("/abort")
    def aborted() -> Any:
        if shop.runs % 2:
            abort(status)
        return "ok"

    Idempotency(shop.app, place.boundary(), principal="shared")
    assert post(shop).json == {"error": "sold"}
    assert (post(shop).status_code == status) is kept
    shop.runs = 0
    assert post(shop, "a", "/abort").status_code == status
    assert (post(shop, "a", "/abort").status_code == status) is kept


def test_r16_an_exception_without_a_handler_frees_the_key(shop: Shop, place: Place) -> None:
    @shop.view()
    def order() -> Any:
        if shop.runs == 1:
            raise ValueError("broken")
        return "ok"

    Idempotency(shop.app, place.boundary(), principal="shared")
    assert post(shop).status_code == 500
    assert (post(shop).text, shop.runs) == ("ok", 2)


# ------------------------------------------------------------ bodies


@pytest.mark.parametrize("early", [None, "form", "get_data", "read"])
@pytest.mark.parametrize("memory_limit", [0, 1 << 20])
def test_r12_the_body_counts_whoever_read_it_before(
    shop: Shop, memory: Boundary, early: str | None, memory_limit: int
) -> None:
    @shop.app.before_request
    def before() -> None:
        if early == "form":
            assert request.form["a"] == "1"
        elif early == "get_data":
            assert b"name" in request.get_data()
        elif early == "read":
            assert request.stream.read(4)

    @shop.view()
    def order() -> Any:
        return jsonify(a=request.form.get("a")) if early != "read" else "ok"

    Idempotency(shop.app, memory, body_memory=memory_limit, principal="shared")

    def form(a: str) -> dict[str, Any]:
        return {"data": {"a": a, "file": (io.BytesIO(b"x" * 70_000), "f.txt")}}

    first = post(shop, **form("1"))
    assert first.status_code == 200
    assert early == "read" or first.json == {"a": "1"}
    assert replayed(post(shop, **form("1"))), "multipart, with a boundary of its own"
    if early != "form":
        assert post(shop, **form("2")).status_code == 422


@pytest.mark.parametrize("early", [True, False])
def test_r12_over_the_hard_limit_whoever_reads_it(shop: Shop, memory: Boundary, early: bool) -> None:
    @shop.app.before_request
    def before() -> None:
        if early:
            request.get_data()

    orders(shop)
    Idempotency(shop.app, memory, body_limit=3, principal="shared")
    environ = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    assert Served(shop.app, body=b"four", **environ).end().code == "request-too-large"
    assert Served(shop.app, body=b"four").end().code == "request-too-large"
    assert shop.runs == 0


# ------------------------------------------------------------ streams and files


@pytest.mark.parametrize("place", LEASED, indirect=True)
def test_r8_r28_a_stream_is_lazy_and_its_end_waits_for_the_record(shop: Shop, place: Place) -> None:
    taken: list[int] = []

    @shop.view()
    def order() -> Response:
        @stream_with_context
        def chunks() -> Iterator[str]:
            for number in range(4):
                assert request.method == "POST"
                assert current().token
                taken.append(number)
                yield str(number)

        return Response(chunks(), headers={"Content-Length": "4"})

    Idempotency(shop.app, place.boundary(), principal="shared")
    served = Served(shop.app)
    assert taken == [0, 1]
    assert served.take() == b"0"
    assert Served(shop.app).end().code == "in-progress"
    assert served.end().body == b"0123"
    again = Served(shop.app).end()
    assert (again.body, again.replayed, shop.runs) == (b"0123", True, 1)


@pytest.mark.parametrize("place", LEASED, indirect=True)
def test_r17_a_stream_that_the_client_leaves_is_recorded(shop: Shop, place: Place) -> None:
    @shop.view()
    def order() -> Any:
        return iter(["a", "b", "c", "d"]), 202

    Idempotency(shop.app, place.boundary(), principal="shared")
    served = Served(shop.app)
    served.take()
    served.close()
    assert Served(shop.app).end().body == b"abcd"


@pytest.mark.parametrize("place", LEASED, indirect=True)
def test_a_stream_whose_response_is_lost_on_the_way_out_is_recorded_all_the_same(shop: Shop, place: Place) -> None:
    @shop.view()
    def order() -> Any:
        return iter(["a", "b", "c"])

    @shop.app.after_request
    def lose(response: Response) -> Response:
        if shop.runs and not replayed(response):
            raise ValueError("after the view")
        return response

    Idempotency(shop.app, place.boundary(), principal="shared")
    assert Served(shop.app).end().status == 500
    assert (Served(shop.app).end().body, shop.runs) == (b"abc", 1)


@pytest.mark.parametrize("place", SQL, indirect=True)
def test_r11_a_transactional_stream_is_whole_before_it_leaves(shop: Shop, place: Place) -> None:
    @shop.view()
    def order() -> Any:
        return iter(["a", "b", "c"])

    @shop.view("/large")
    def large() -> Any:
        return iter(["a", "b", "c", "d"])

    Idempotency(shop.app, place.boundary(), response_limit=3, principal="shared")
    assert Served(shop.app).end().body == b"abc"
    assert Served(shop.app, "large", path="/large").end().code == "response-unsupported"


def test_r28_a_file_does_not_pass_around(shop: Shop, place: Place) -> None:
    opened: list[io.BytesIO] = []

    @shop.view()
    def order() -> Response:
        opened.append(io.BytesIO(b"x" * 20_000))
        return send_file(opened[-1], "text/plain")

    Idempotency(shop.app, place.boundary(), principal="shared")
    for _ in range(2):
        assert Served(shop.app).end().body == b"x" * 20_000
    assert [file.closed for file in opened] == [True]


# ------------------------------------------------------------ transactions


class Books:
    """A table, and an application that writes to it."""

    def __init__(self, shop: Shop, url: str) -> None:
        self.shop = shop
        self.engine = create_engine(url)
        self.table = f"books_{secrets.token_hex(4)}"
        with self.engine.begin() as tx:
            tx.execute(text(f"CREATE TABLE {self.table} (title TEXT)"))
        self.boundary = Boundary(self.table, store=sessionmaker(self.engine), effects="transactional")

    def add(self, session: Any) -> None:
        session.execute(text(f"INSERT INTO {self.table} VALUES ('a')"))

    def count(self) -> int:
        with self.engine.begin() as tx:
            return int(tx.execute(text(f"SELECT count(*) FROM {self.table}")).scalar_one())

    def close(self) -> None:
        self.boundary.close()
        self.engine.dispose()


@pytest.fixture
def books(shop: Shop, place: Place) -> Iterator[Books]:
    if place.store.startswith("postgresql"):
        connect(place.store).migrate()
    opened = Books(shop, place.store.replace("postgresql://", "postgresql+psycopg://"))
    yield opened
    opened.close()


@pytest.mark.parametrize("place", SQL, indirect=True)
@pytest.mark.parametrize("through", ["current", "scoped"])
def test_a_transaction_is_one_with_the_views_work(books: Books, through: str) -> None:
    shop = books.shop
    scoped = scoped_session(sessionmaker(books.engine))
    outcome: list[Any] = []

    @shop.app.before_request
    def before() -> None:
        outcome.append(scoped())

    @shop.app.teardown_request
    def after(error: BaseException | None) -> None:
        assert scoped() is outcome.pop(), "the application's own session is back"
        scoped.remove()

    @shop.view()
    def order() -> Any:
        books.add(current().tx if through == "current" else scoped)
        return "done", int(request.headers["X-Status"])

    Idempotency(shop.app, books.boundary, session=scoped if through == "scoped" else None, principal="shared")

    def sent(key: str, status: int) -> Any:
        return post(shop, key, headers={"X-Status": str(status)})

    assert (sent("a", 201).status_code, books.count()) == (201, 1)
    assert (replayed(sent("a", 201)), books.count()) == (True, 1)
    assert (sent("b", 500).status_code, books.count()) == (500, 1)
    assert (sent("b", 201).status_code, books.count()) == (201, 2)
    assert (sent("c", 409).status_code, books.count()) == (409, 3)
    assert replayed(sent("c", 409))


@pytest.mark.fault(23)
@pytest.mark.parametrize("place", ["postgresql-transactional"], indirect=True)
@pytest.mark.parametrize("answered", ["errorhandler", "abort"])
def test_a_serialization_failure_that_is_answered_by_a_4xx_runs_the_view_again(books: Books, answered: str) -> None:
    shop, last = books.shop, 3

    @shop.view()
    def order() -> str:
        books.add(current().tx)
        try:
            if shop.runs < last:
                current().tx.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"))
        except DBAPIError:
            if answered == "abort":
                abort(409)
            raise
        return "done"

    if answered == "errorhandler":
        shop.app.errorhandler(DBAPIError)(lambda error: ("busy", 409))
    Idempotency(shop.app, books.boundary, principal="shared")
    assert (post(shop).text, books.count(), shop.runs) == ("done", 1, 3)
    assert replayed(post(shop))
    last = 100
    assert (post(shop, "exhausted").status_code, books.count(), shop.runs) == (503, 1, 9)
    last = 0
    assert (post(shop, "exhausted").text, books.count()) == ("done", 2)


@pytest.mark.parametrize("place", SQL, indirect=True)
def test_a_view_that_commits_by_itself_is_found_out_and_nothing_is_committed(books: Books) -> None:
    shop = books.shop

    @shop.view()
    def order() -> str:
        books.add(current().tx)
        if shop.runs == 1:
            current().tx.commit()
        return "done"

    Idempotency(shop.app, books.boundary, principal="shared")
    assert (post(shop).status_code, books.count()) == (500, 0)
    assert (post(shop).text, books.count()) == ("done", 1)


@pytest.mark.parametrize("place", ["postgresql-transactional"], indirect=True)
def test_a_commit_beside_the_transaction_is_told_and_one_outside_of_requests_is_not(books: Books) -> None:
    shop, seen = books.shop, Recorder()
    sessions = sessionmaker(books.engine)
    boundary = Boundary("books", store=sessions, effects="transactional", observers=[seen])

    @shop.view()
    def order() -> str:
        if request.args:
            with sessions.begin() as other:
                books.add(other)
        return "done"

    Idempotency(shop.app, boundary, principal="shared")
    post(shop)
    with sessions.begin() as other:
        books.add(other)
    assert "outside_commit" not in seen.names
    post(shop, "other", query_string={"beside": 1})
    assert "outside_commit" in seen.names
    boundary.close()


@pytest.mark.parametrize("place", SQL, indirect=True)
def test_a_session_that_is_used_after_the_commit_is_found_out(books: Books) -> None:
    shop = books.shop

    @shop.view()
    def order() -> str:
        g.tx = current().tx
        return "done"

    @shop.app.after_request
    def late(response: Response) -> Response:
        if "tx" in g:
            books.add(g.tx)
        return response

    Idempotency(shop.app, books.boundary, principal="shared")
    assert post(shop).status_code == 500
    assert (post(shop).text, books.count()) == ("done", 0)


@pytest.mark.parametrize("place", SQL, indirect=True)
def test_session_needs_a_sessionmaker(shop: Shop, place: Place) -> None:
    shop.app.testing = True
    orders(shop)
    Idempotency(shop.app, place.boundary(), session=scoped_session(sessionmaker()), principal="shared")
    with pytest.raises(ConfigurationError, match="sessionmaker"):
        post(shop)
    assert shop.runs == 0


@pytest.mark.parametrize("place", SQL, indirect=True)
@pytest.mark.parametrize("how", ["json", "form", "stream"])
def test_f23_a_transaction_that_the_database_wants_again_runs_the_view_again_with_the_same_body(
    shop: Shop, place: Place, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wanted(Exception):
        pass

    boundary = place.boundary()
    monkeypatch.setattr(boundary._settings.backend, "restarts", lambda error: isinstance(error, Wanted))
    read: list[Any] = []

    @shop.app.errorhandler(Exception)
    def swallow(error: Exception) -> Any:
        return "swallowed", 500

    @shop.view()
    def order() -> str:
        if how == "form":
            read.append(request.files["file"].read())
        else:
            read.append(request.get_json()["a"] if how == "json" else request.stream.read())
        if shop.runs < 3:
            raise Wanted
        return "done"

    Idempotency(shop.app, boundary, principal="shared")
    sent = {"form": {"data": {"file": (io.BytesIO(b"abc"), "f.txt")}}, "json": {}, "stream": {"data": b"abc"}}[how]
    assert post(shop, **sent).text == "done"
    assert len(read) == 3
    assert read[0]
    assert set(read) == {read[0]}


def test_flask_sqlalchemy_shares_its_session(tmp_path: Any) -> None:
    from flask_sqlalchemy import SQLAlchemy

    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'shop.db'}"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.5}
    app.config["SQLALCHEMY_BINDS"] = {"audit": f"sqlite:///{tmp_path / 'audit.db'}"}
    db = SQLAlchemy(app)
    flushed: list[Any] = []
    event.listen(db.session, "before_flush", lambda session, *_: flushed.append(session))

    class Order(db.Model):  # type: ignore[misc, name-defined]
        id = db.Column(db.Integer, primary_key=True)

    class Audit(db.Model):  # type: ignore[misc, name-defined]
        __bind_key__ = "audit"
        id = db.Column(db.Integer, primary_key=True)

    with app.app_context():
        db.create_all()
        engines = list(db.engines.values())
        boundary = Boundary("orders", store=db.session.session_factory, effects="transactional")
    Idempotency(app, boundary, session=db.session, principal="shared")

    @app.before_request
    def hold_the_only_connection() -> None:
        db.session.execute(db.select(1))

    @app.post("/orders")
    def order() -> Any:
        assert db.session.scalar(db.select(db.func.count()).select_from(Order)) is not None
        made = Order()
        db.session.add_all([made, Audit()])
        db.session.flush()
        assert db.session.query(Order).filter_by(id=made.id).first_or_404() is made  # type: ignore[attr-defined]
        assert db.session() is current().tx is flushed.pop()
        return jsonify(id=made.id), int(request.headers["X-Status"])

    client = app.test_client()
    assert post(client, "a", headers={"X-Status": "500"}).status_code == 500
    assert post(client, "a", headers={"X-Status": "201"}).json == {"id": 1}
    assert replayed(post(client, "a", headers={"X-Status": "201"}))
    with app.app_context():
        for model in (Order, Audit):
            assert db.session.scalar(db.select(db.func.count()).select_from(model)) == 1
        db.session.remove()
    boundary.close()
    for engine in engines:
        engine.dispose()


def test_async_views(shop: Shop, memory: Boundary) -> None:
    @shop.app.post("/orders")
    @idempotent
    async def order() -> str:
        return str(current().token)

    Idempotency(shop.app, memory, principal="shared")
    assert post(shop).text == post(shop).text
