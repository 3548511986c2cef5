"""REST framework: the mixin and the decorator, on every store, leased and transactional."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import ConfigurationError, current
from tests.http.django_site import MIDDLEWARE, PLACES, SQL, Site, User, code, opened, post, replayed
from tests.tables import each_row

from django.db import connections, transaction  # isort: skip
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse  # isort: skip
from django.urls import include, path  # isort: skip
from rest_framework import exceptions, mixins, renderers, serializers, viewsets  # isort: skip
from rest_framework.authentication import BaseAuthentication  # isort: skip
from rest_framework.decorators import action, api_view, authentication_classes  # isort: skip
from rest_framework.permissions import BasePermission  # isort: skip
from rest_framework.response import Response  # isort: skip
from rest_framework.routers import SimpleRouter  # isort: skip
from rest_framework.throttling import BaseThrottle  # isort: skip
from rest_framework.views import APIView  # isort: skip

from drf_spectacular.openapi import AutoSchema as SpectacularSchema  # isort: skip

from retrysafe.http.drf import AutoSchema, Idempotency, IdempotentMixin, IdempotentSchema, idempotent  # isort: skip

REST = {"UNAUTHENTICATED_USER": None}
LEASED = [name for name in PLACES if name not in SQL]


class Header(BaseAuthentication):
    """Authenticates the name in the header."""

    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-User")
        if name == "bad":
            raise exceptions.AuthenticationFailed
        return None if name is None else (User(int(name)), None)

    def authenticate_header(self, request: Any) -> str:
        return "Header"


class Order(serializers.Serializer):  # type: ignore[misc]
    """The order of a customer."""

    item = serializers.CharField(max_length=10)


class Orders(IdempotentMixin, APIView):
    """One row for every run."""

    authentication_classes = (Header,)
    site: Site

    def get(self, request: Any) -> Response:
        return Response("read")

    def post(self, request: Any) -> Response:
        self.site.work()
        order = Order(data=request.data)
        order.is_valid(raise_exception=True)
        assert request.idempotency is (current() if request.headers.get("Idempotency-Key") else None)
        return Response({"order": self.site.runs, **order.validated_data}, status=201)


@pytest.fixture(params=PLACES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Every store, leased and, where it can, transactional."""
    with opened(request.param, tmp_path) as found:
        found.settings(REST_FRAMEWORK=REST)
        yield found


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """A leased site, for what no store has a part in."""
    with opened("memory", tmp_path) as found:
        found.settings(REST_FRAMEWORK=REST)
        yield found


def guarded(site: Site, base: type = Orders, namespace: dict[str, Any] | None = None, **options: Any) -> Any:
    """A class of views at this site."""
    promised = Idempotency(site.boundary(), **options)
    return type(base.__name__, (base,), {"site": site, "idempotency": promised, **(namespace or {})})


def send(client: Any, key: str | None = "k", item: str = "lamp", **headers: str) -> Any:
    headers.setdefault("x_user", "1")
    return post(client, key, f'{{"item": "{item}"}}', type="application/json", **headers)


# ------------------------------------------------------------ the course of a request


def test_r1_r2_runs_once_and_retries_get_the_same_response(site: Site) -> None:
    client = site.serve(guarded(site).as_view())
    first, second = send(client), send(client)
    assert (first.status_code, first.json()) == (201, {"order": 1, "item": "lamp"})
    assert (second.status_code, second.content, replayed(second)) == (201, first.content, True)
    assert second.headers["Content-Type"] == first.headers["Content-Type"]
    assert second.headers["Allow"] == first.headers["Allow"]
    assert site.rows() == site.runs == 1
    assert code(send(client, item="sofa")) == "key-reused"


def test_k6_required_by_default_and_only_where_there_is_something_to_guard(small: Site) -> None:
    client = small.serve(guarded(small).as_view())
    answer = send(client, None)
    assert (answer.status_code, code(answer), small.runs) == (400, "key-missing", 0)
    assert client.get("/orders", headers={"X-User": "1"}).json() == "read"
    assert client.options("/orders", headers={"X-User": "1"}).status_code == 200
    assert send(small.serve(guarded(small, required=False).as_view()), None).status_code == 201


def test_k8_principals_are_those_that_rest_framework_knows(site: Site) -> None:
    client = site.serve(guarded(site).as_view())
    for user in "12":
        assert [replayed(send(client, x_user=user)) for _ in "12"] == [False, True]
    answer = post(client, body="{}", type="application/json")
    assert (answer.status_code, code(answer), site.runs) == (403, "principal-missing", 2)
    everybody = site.serve(guarded(site, principal="shared").as_view())
    assert [replayed(send(everybody, x_user=user)) for user in "12"] == [False, True]
    named = site.serve(guarded(site, principal=lambda request: request.user.pk % 2).as_view())
    assert [replayed(send(named, x_user=user)) for user in "123"] == [False, False, True]


def test_r26_authentication_permissions_and_throttles_come_first(site: Site) -> None:
    class Permission(BasePermission):
        allowed = True

        def has_permission(self, request: Any, view: Any) -> bool:
            return self.allowed and bool(request.data)

    class Throttle(BaseThrottle):
        asked = 0

        def allow_request(self, request: Any, view: Any) -> bool:
            Throttle.asked += 1
            return Throttle.asked != 3

        def wait(self) -> int:
            return 7

    def handle(self: Any, request: Any) -> Response:
        assert request._request.body == b'{"item": "lamp"}'  # although the permission had it parsed
        site.work()
        return Response()

    namespace = {"permission_classes": [Permission], "throttle_classes": [Throttle], "post": handle}
    client = site.serve(guarded(site, namespace=namespace).as_view())
    assert send(client, x_user="bad").status_code == 401
    assert send(client, "a,b", x_user="bad").status_code == 401
    assert not site.seen.names
    assert [replayed(send(client)) for _ in "12"] == [False, True]
    assert send(client).headers["Retry-After"] == "7"
    Permission.allowed = False
    assert send(client).status_code == 403
    assert site.rows() == 1


def test_errors_of_the_handler_are_kept_as_rest_framework_renders_them(site: Site) -> None:
    client = site.serve(guarded(site).as_view())
    first, second = send(client, item="x" * 11), send(client, item="x" * 11)
    assert (first.status_code, second.status_code, replayed(second)) == (400, 400, True)
    assert first.content == second.content
    assert b"no more than 10 characters" in second.content
    assert site.rows() == 1


@each_row("atomic", [True, False])
@each_row("item", ["lamp", "x" * 11])
def test_the_key_of_a_request_does_not_decide_what_commits(tmp_path: Path, item: str, *, atomic: bool) -> None:
    """Under ATOMIC_REQUESTS REST framework undoes what an APIException leaves, with a key as without."""
    with opened("sqlite-transactional", tmp_path, ATOMIC_REQUESTS=atomic) as site:
        site.settings(REST_FRAMEWORK=REST)
        client = site.serve(guarded(site, required=False).as_view())
        rows = []
        for key in (None, "k"):
            before = site.rows()
            assert send(client, key, item=item).status_code == (201 if item == "lamp" else 400)
            rows.append(site.rows() - before)
        assert rows == [0 if atomic and item != "lamp" else 1] * 2
        assert replayed(send(client, item=item))


@pytest.mark.parametrize("error", [exceptions.APIException, ValueError, exceptions.PermissionDenied])
def test_r16_failures_are_not_kept(site: Site, error: Any) -> None:
    def fail(self: Any, request: Any) -> Response:
        site.work()
        raise error

    client = site.serve(guarded(site, namespace={"post": fail}).as_view())
    answers = [send(client) for _ in "12"]
    assert [replayed(answer) for answer in answers] == [False, False]
    assert {answer.status_code for answer in answers} == {403 if error is exceptions.PermissionDenied else 500}
    assert site.rows() == (0 if site.transactional and error is not exceptions.PermissionDenied else 2)


def test_responses_are_rendered_inside(site: Site) -> None:
    class Counting(renderers.JSONRenderer):  # type: ignore[misc]
        rendered = 0

        def render(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            Counting.rendered += 1
            assert current().token
            if data["order"] == 1:
                raise ValueError
            return super().render(data, *args, **kwargs)

    client = site.serve(guarded(site, namespace={"renderer_classes": [Counting]}).as_view())
    assert send(client).status_code == 500
    assert [replayed(send(client)) for _ in "12"] == [False, True]
    assert Counting.rendered == 2
    assert site.rows() == (1 if site.transactional else 2)


def test_r10_streams_pass_through_rest_framework(site: Site) -> None:
    def stream(self: Any, request: Any) -> StreamingHttpResponse:
        site.work()
        return StreamingHttpResponse(iter([b"a", b"b"]))

    client = site.serve(guarded(site, namespace={"post": stream}).as_view())
    assert send(client).getvalue() == b"ab"
    assert (send(client).content, site.rows()) == (b"ab", 1)


# ------------------------------------------------------------ the ways to say it


def test_view_sets_with_a_policy_for_each_action(site: Site) -> None:
    class Set(IdempotentMixin, mixins.CreateModelMixin, viewsets.GenericViewSet):  # type: ignore[misc]
        authentication_classes = (Header,)
        serializer_class = Order
        idempotency = Idempotency(site.boundary(), actions={"destroy": "required", "pay": "optional", "free": "off"})

        def perform_create(self, serializer: Any) -> None:
            site.work()

        def destroy(self, request: Any, pk: str) -> Response:
            site.work()
            return Response(status=204)

        @action(detail=True, methods=["post"])
        def pay(self, request: Any, pk: str) -> Response:
            site.work()
            return Response({"paid": pk})

        @action(detail=True, methods=["post"])
        def free(self, request: Any, pk: str) -> Response:
            site.work()
            return Response()

    router = SimpleRouter()
    router.register("set", Set, basename="order")
    client = site.serve(None, path("", include(router.urls)))
    assert [replayed(send(client, path="/set/")) for _ in "12"] == [False, True]
    assert code(send(client, None, path="/set/")) == "key-missing"
    assert [replayed(send(client, "d", path="/set/1/", method="DELETE")) for _ in "12"] == [False, True]
    assert code(send(client, None, path="/set/1/", method="DELETE")) == "key-missing"
    assert [replayed(send(client, "p", path="/set/1/pay/")) for _ in "12"] == [False, True]
    assert send(client, None, path="/set/1/pay/").status_code == 200
    assert [replayed(send(client, "f", path="/set/1/free/")) for _ in "12"] == [False, False]
    assert site.rows() == 6


def test_functions_and_urls(site: Site) -> None:
    @idempotent(site.boundary())
    @api_view(["GET", "POST"])
    @authentication_classes([Header])
    def create(request: Any) -> Response:
        """Make an order."""
        site.work()
        return Response(request.data)

    class Plain(APIView):
        authentication_classes = (Header,)

        def post(self, request: Any) -> Response:
            site.work()
            return Response(request.data)

    around = idempotent(site.boundary())(Plain.as_view())
    client = site.serve(create, path("plain", around))
    for where in ("/orders", "/plain"):
        first, second = send(client, path=where), send(client, path=where)
        assert (first.json(), second.content, replayed(second)) == ({"item": "lamp"}, first.content, True)
    assert site.rows() == 2
    assert (create.cls.__name__, create.cls.__doc__) == ("create", "Make an order.")


def test_other_views_than_rest_frameworks_are_refused(small: Site) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="above @api_view"):
        idempotent(small.boundary())(view)
    with pytest.raises(ConfigurationError, match="no idempotency"):
        Orders.as_view()
    with pytest.raises((ConfigurationError, RuntimeError)) as refused:  # RuntimeError before Python 3.12
        type("Silent", (APIView,), {"idempotency": Idempotency(small.boundary())})
    assert "class Silent(IdempotentMixin, …)" in f"{refused.value} {refused.value.__cause__}"
    with pytest.raises(ConfigurationError, match="'destroy' is 'maybe'"):
        Idempotency(small.boundary(), actions={"destroy": "maybe"})  # type: ignore[dict-item]


def test_actions_that_are_none_of_the_view_are_refused(small: Site) -> None:
    class Set(IdempotentMixin, mixins.CreateModelMixin, viewsets.GenericViewSet):  # type: ignore[misc]
        @action(detail=True, methods=["post"])
        def pay(self, request: Any, pk: str) -> None: ...

    def made(base: Any, *map_of: Any, **actions: Any) -> Any:
        return guarded(small, base, actions=actions).as_view(*map_of)

    made(Set, {"post": "create"}, pay="off", create="optional", delete="off")
    made(Orders, post="optional")
    for base, map_of, wrong in ((Set, ({"post": "create"},), "creat"), (Orders, (), "delete"), (Orders, (), "site")):
        with pytest.raises(ConfigurationError, match=f"'{wrong}' is neither an action nor a method of"):
            made(base, *map_of, **{wrong: "off"})


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_k7_every_unsafe_method_is_guarded(small: Site, method: str) -> None:
    def handle(self: Any, request: Any) -> Response:
        small.runs += 1
        return Response()

    def client(**options: Any) -> Any:
        return small.serve(guarded(small, namespace={method.lower(): handle}, **options).as_view())

    every = client()
    assert [replayed(send(every, method=method)) for _ in "12"] == [False, True]
    assert code(send(every, None, method=method)) == "key-missing"
    none = client(methods=["LOCK"])
    assert [replayed(send(none, method=method)) for _ in "12"] == [False, False]
    named = client(methods=["LOCK"], actions={method.lower(): "required"})
    assert [replayed(send(named, method=method)) for _ in "12"] == [False, True]


def test_inside_the_middleware_the_view_claims_nothing_more(site: Site) -> None:
    client = site.serve(
        guarded(site).as_view(), MIDDLEWARE=[MIDDLEWARE], RETRYSAFE={"BOUNDARY": site.boundary(), "PRINCIPAL": "shared"}
    )
    assert [replayed(send(client)) for _ in "12"] == [False, True]
    assert site.seen.names.count("completed") == 1
    assert code(send(client, None)) == "key-missing"


@pytest.mark.parametrize("kind", ["mixin", "last", "decorator"])
def test_k8_r26_the_middleware_leaves_guarded_views_to_their_own_guard(site: Site, kind: str) -> None:
    """No replay is sent before REST framework has found the user, and only that of the user's own request."""
    views = {
        "mixin": lambda: guarded(site).as_view(),
        "last": lambda: guarded(site, type("Set", (viewsets.ViewSet, Orders), {})).as_view({"post": "post"}),
        "decorator": lambda: idempotent(site.boundary())(type("Plain", (Plain,), {"site": site}).as_view()),
    }
    client = site.serve(
        views[kind](), MIDDLEWARE=[MIDDLEWARE], RETRYSAFE={"BOUNDARY": site.boundary(), "PRINCIPAL": "shared"}
    )
    assert [replayed(send(client, x_user=user)) for user in "1122"] == [False, True] * 2
    assert send(client, x_user="bad").status_code == 401
    assert code(post(client, "k", '{"item": "lamp"}', type="application/json")) == "principal-missing"
    assert site.rows() == 2


class Plain(APIView):
    """Not guarded by itself."""

    authentication_classes = (Header,)
    site: Site

    def post(self, request: Any) -> Response:
        self.site.work()
        return Response(request.data)


# ------------------------------------------------------------ transactions


def test_a_transaction_that_the_database_wants_again(tmp_path: Path) -> None:
    with opened("postgresql-transactional", tmp_path) as site:
        site.settings(REST_FRAMEWORK=REST)
        items: list[Any] = []

        class Throttle(BaseThrottle):
            asked = 0

            def allow_request(self, request: Any, view: Any) -> bool:
                Throttle.asked += 1
                return True

        def post_again(self: Any, request: Any) -> Response:
            items.append(request.data.pop("item"))
            site.work()
            if site.runs < 3:
                site.execute("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$")
            return Response(items)

        for handler in (
            None,
            *(lambda error, context, status=status: Response(status=status) for status in (503, 409)),
        ):
            site.settings(REST_FRAMEWORK=REST | ({} if handler is None else {"EXCEPTION_HANDLER": handler}))
            site.runs = Throttle.asked = 0
            site.execute("DELETE FROM goods")
            items.clear()
            view = guarded(site, namespace={"post": post_again, "throttle_classes": [Throttle]}).as_view()
            answer = send(site.serve(view))
            assert (answer.status_code, items) == (200, ["lamp"] * 3), answer.content
            assert (site.rows(), Throttle.asked) == (1, 1)


@pytest.mark.parametrize("name", ["postgresql", "postgresql-transactional", "redis"])
def test_atomic_requests_end_before_the_record(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path, ATOMIC_REQUESTS=True) as site:
        site.settings(REST_FRAMEWORK=REST)
        inside: list[bool] = []

        def handle(self: Any, request: Any) -> Response:
            inside.append(connections[site.alias].in_atomic_block)
            site.work()
            if request.data == {"item": "fail"}:
                raise exceptions.ValidationError("no")
            return Response()

        view = guarded(site, namespace={"post": handle, "get": handle}).as_view()
        client = site.serve(view)
        assert [replayed(send(client, item="fail")) for _ in "12"] == [False, True]
        assert site.rows() == 0
        assert [replayed(send(client, "l")) for _ in "12"] == [False, True]
        assert send(client, method="GET").status_code == 200
        assert (site.rows(), inside) == (2, [True] * 3)

        exempt = site.serve(
            transaction.non_atomic_requests(using=site.alias)(guarded(site, namespace={"post": handle}).as_view())
        )
        send(exempt)
        assert inside[3:] == [site.transactional]


# ------------------------------------------------------------ documents


@pytest.mark.parametrize("generator", ["rest_framework", "drf_spectacular"])
def test_r29_documents_show_the_header_and_the_answers(small: Site, generator: str) -> None:
    from drf_spectacular.generators import SchemaGenerator as Spectacular
    from rest_framework.schemas.openapi import SchemaGenerator

    class Set(IdempotentMixin, mixins.CreateModelMixin, viewsets.GenericViewSet):  # type: ignore[misc]
        serializer_class = Order
        idempotency = Idempotency(small.boundary(window="48h"), actions={"destroy": "optional", "pay": "off"})
        schema = Spectacled() if generator == "drf_spectacular" else AutoSchema()

        def destroy(self, request: Any, pk: str) -> None: ...

        @action(detail=True, methods=["post"])
        def pay(self, request: Any, pk: str) -> None: ...

    router = SimpleRouter()
    router.register("set", Set, basename="order")
    made = Spectacular if generator == "drf_spectacular" else SchemaGenerator
    paths = made(patterns=router.urls, title="Shop").get_schema(public=True)["paths"]
    create, destroy, pay = paths["/set/"]["post"], paths["/set/{id}/"]["delete"], paths["/set/{id}/pay/"]["post"]
    headers = [[p for p in operation["parameters"] if p["in"] == "header"] for operation in (create, destroy, pay)]
    assert [[header["required"] for header in found] for found in headers] == [[True], [False], []]
    assert set(create["responses"]) == {"201", "400", "403", "409", "422", "503"}
    assert create["x-idempotency"]["window"] == 48 * 3600
    assert "x-idempotency" not in pay


class Spectacled(IdempotentSchema, SpectacularSchema):  # type: ignore[misc]
    """As users of drf-spectacular write it."""
