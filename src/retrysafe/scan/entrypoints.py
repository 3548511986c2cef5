"""Functions that something outside may call twice: handlers of requests, and consumers of messages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from retrysafe.scan.facts import CHANGING, Facts, methods_of
from retrysafe.scan.guards import is_guarded, mentions_guard
from retrysafe.scan.module import Function, Module
from retrysafe.scan.project import Project, own_nodes
from retrysafe.scan.symbols import Symbols

_ROUTERS = Symbols(
    "fastapi.{FastAPI,APIRouter}().{post,put,patch,api_route,route}",
    "flask.{Flask,Blueprint}().{post,put,patch,route}",
    "{flask_openapi3,apiflask,flask_smorest}.**().{post,put,patch,route}",
    "starlette.applications.Starlette().route",
    "aiohttp.web.RouteTableDef().{post,put,patch}",
    "litestar.{post,put,patch}",
    "litestar.handlers.{post,put,patch}",
    "ninja.{NinjaAPI,Router}().{post,put,patch,api_operation}",
)
_DJANGO_METHODS = Symbols("django.views.decorators.http.{require_POST,require_http_methods}")
_DRF_METHODS = Symbols("rest_framework.decorators.{api_view,action}")
_VIEWS = (
    ("DRF", Symbols("rest_framework.{views.APIView,generics.**,viewsets.**,mixins.**}")),
    ("Django", Symbols("django.views.{View,generic.**}")),
    ("Flask", Symbols("flask.views.MethodView", "flask_restful.Resource", "flask_restx.Resource", "flask_smorest.**")),
    ("Starlette", Symbols("starlette.endpoints.HTTPEndpoint")),
    ("aiohttp", Symbols("aiohttp.web.View", "aiohttp.web_urldispatcher.View")),
)
_VIEW_METHODS = {"post": "POST", "put": "PUT", "patch": "PATCH"}
_DRF_VIEW_METHODS = {**_VIEW_METHODS, "create": "POST", "perform_create": "POST", "partial_update": "PATCH"}
_FAMILIES = {"fastapi": "fastapi", "flask": "flask", "starlette": "starlette", "aiohttp": "aiohttp", "drf": "django"}

_TASKS = Symbols("celery.{shared_task,Celery().task,app.shared_task,task,current_app.task}")
_ACTORS = Symbols("dramatiq.actor", "dramatiq.**.actor")
_SUBSCRIBERS = Symbols("faststream.**.subscriber")
_CALLBACKS = Symbols("pika.**.basic_consume", "aio_pika.**.consume", "nats.**.subscribe")
_REGISTERS = (
    *(_ROUTERS, _TASKS, _ACTORS, _SUBSCRIBERS),
    Symbols(
        "fastapi.{FastAPI,APIRouter}().{delete,get}",
        "flask.{Flask,Blueprint}().{delete,get}",
        "{flask_openapi3,apiflask,flask_smorest}.**().{delete,get}",
        "aiohttp.web.RouteTableDef().{delete,get,route}",
        "litestar.{delete,get,route}",
        "litestar.handlers.{delete,get,route}",
        "ninja.{NinjaAPI,Router}().{delete,get}",
        "{taskiq,taskiq_*}.**().task",
        "procrastinate.**().task",
        "django.dispatch.{receiver,dispatcher.receiver}",
        "{mcp.server,fastmcp}.**().tool",
        "pydantic_ai.{Agent,agent.Agent}().{tool,tool_plain}",
    ),
)
"""Decorators that hand the function to something that calls it. Where a name leads to the function, as Django's routes
and REST framework's actions do, a guard above is on the way."""
_ONCE = Symbols(
    "retrysafe.Boundary().{once,once()}",
    "retrysafe.tasks.*.{once,once()}",
    "retrysafe.agents.**ToolGuard().{once,once()}",
    "retrysafe.http.*.{idempotent,idempotent()}",
)
_STREAMS = Symbols("{kafka.KafkaConsumer,aiokafka.AIOKafkaConsumer}()")
_POLLS = Symbols(
    "confluent_kafka.{Consumer,DeserializingConsumer}().{poll,consume}", "{kafka,aiokafka}.**.{poll,getone,getmany}"
)
_RECEIVES = Symbols("boto3.**.{receive_message,receive_messages}")
_RECEIVED = Symbols("boto3.**.{receive_message,receive_messages}()**")
_UNTIL_DELETED = "SQS delivers again what was not deleted in time"


class Callee(NamedTuple):
    """A handler of requests that change something."""

    function: Function
    framework: str
    methods: frozenset[str]


class Callback(NamedTuple):
    """A consumer of messages: the node that is reported, its function or its loop, and why messages come again."""

    node: ast.AST
    title: str
    because: str


class EntryPoints:
    """Finds entry points in modules by what their routers, decorators and base classes are."""

    def __init__(self, project: Project, facts: Facts) -> None:
        self._project = project
        self._facts = facts

    # ------------------------------------------------------------ requests

    def handlers(self, module: Module) -> Iterator[Callee]:
        """Handlers of POST, PUT and PATCH that nothing guards."""
        for qualname, function in module.functions():
            found = self._handler(module, qualname, function)
            if found is None or not found.methods or is_guarded(self._project, module, function):
                continue
            family = found.framework.lower()
            if _FAMILIES.get(family, family) not in self._facts.guarded:
                yield found

    def _handler(self, module: Module, qualname: str, function: Function) -> Callee | None:
        for decorator in function.decorator_list:
            found = self._handler_by_decorator(module, function, decorator)
            if found is not None:
                return found
        owner = module.parents.get(function)
        if isinstance(owner, ast.ClassDef):
            return self._method(module, owner, function)
        routed = self._facts.routed.get(f"{module.name}:{qualname}")
        if routed is None:
            return None
        framework, methods = routed
        if framework == "Django":
            methods = frozenset({"POST"}) if _asks_for_post(function) else frozenset()
        return Callee(function, framework, methods)

    def _handler_by_decorator(self, module: Module, function: Function, decorator: ast.expr) -> Callee | None:
        call = decorator if isinstance(decorator, ast.Call) else None
        symbol = self._project.resolve(module, call.func if call is not None else decorator)
        if symbol in _ROUTERS:
            if call is None or self._router_is_guarded(module, call.func):
                return Callee(function, "guarded", frozenset())
            verb = symbol.rpartition(".")[2].upper()
            methods = frozenset({verb}) if verb in CHANGING else methods_of(call) & CHANGING
            framework = {"fastapi": "FastAPI", "flask": "Flask"}.get(symbol.partition(".")[0], symbol.partition(".")[0])
            return Callee(function, framework, methods)
        if symbol in _DJANGO_METHODS or symbol in _DRF_METHODS:
            methods = methods_of(call) & CHANGING if call is not None else frozenset({"POST"})
            framework = "Django" if symbol in _DJANGO_METHODS else "DRF"
            if framework == "Django" and f"{module.name}:{module.qualname_at(function)}" not in self._facts.routed:
                return (
                    None
                    if isinstance(module.parents.get(function), ast.ClassDef)
                    else Callee(function, framework, methods)
                )
            return Callee(function, framework, methods)
        return None

    def is_guarded_route(self, module: Module, function: Function) -> bool:
        """Tell whether a decorator makes a function a handler of a router that is guarded."""
        found = (self._handler_by_decorator(module, function, one) for one in function.decorator_list)
        return any(one is not None and one.framework == "guarded" for one in found)

    def _router_is_guarded(self, module: Module, function: ast.expr) -> bool:
        if not isinstance(function, ast.Attribute):
            return False
        made = self._project.value(module, function.value)
        if isinstance(made, ast.Call) and mentions_guard(self._project, module, made):
            return True
        router = ast.unparse(function.value)
        return any(
            ast.unparse(target) in (f"{router}.route_class", f"{router}.router.route_class")
            and mentions_guard(self._project, module, self._project.value(module, node.value))
            for node in module.nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
        )

    def _method(self, module: Module, owner: ast.ClassDef, function: Function) -> Callee | None:
        if function.name not in _DRF_VIEW_METHODS:
            return None
        symbol = f"{module.name}:{module.scopes[owner].qualname}"
        for framework, classes in _VIEWS:
            if self._project.is_a(symbol, classes):
                names = _DRF_VIEW_METHODS if framework == "DRF" else _VIEW_METHODS
                return Callee(function, framework, frozenset({names[function.name]} if function.name in names else ()))
        return None

    def idle_guards(self, module: Module) -> Iterator[ast.expr]:
        """Guards that stand above the decorator that registers the function: what it registers has none."""
        for _, function in module.functions():
            guard: ast.expr | None = None
            for decorator in function.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                symbol = self._project.resolve(module, called)
                if symbol in _ONCE:
                    guard = decorator
                elif guard is not None and any(symbol in registering for registering in _REGISTERS):
                    yield guard
                    break

    # ------------------------------------------------------------ messages

    def consumers(self, module: Module) -> Iterator[Callback]:
        """Consumers whose messages can come again."""
        for _, function in module.functions():
            because = self._redelivery(module, function) or _of_lambda(module, function)
            if because and not is_guarded(self._project, module, function):
                yield Callback(function, *because)
        for node in module.nodes:
            found = self._loop_or_callback(module, node)
            if found is None:
                continue
            around = found.node if isinstance(found.node, Function) else module.function_around(found.node)
            if around is None or not is_guarded(self._project, module, around):
                yield found

    def _redelivery(self, module: Module, function: Function) -> tuple[str, str] | None:
        for decorator in function.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            symbol = self._project.resolve(module, call.func if call is not None else decorator)
            options = {one.arg: one.value for one in call.keywords} if call is not None else {}
            if symbol in _TASKS and (because := self._celery_again(function, options)):
                return "Celery task", because
            if symbol in _ACTORS and not _is(options.get("max_retries"), 0):
                return "Dramatiq actor", "Dramatiq retries it after an error"
            if symbol in _SUBSCRIBERS and call is not None and not self._router_is_guarded(module, call.func):
                return "FastStream subscriber", "its broker delivers at least once"
        return None

    def _celery_again(self, function: Function, options: dict[str | None, ast.expr]) -> str:
        if _is(options.get("acks_late"), True) or (self._facts.acks_late and "acks_late" not in options):
            return "acks_late delivers it again when a worker dies"
        if "autoretry_for" in options:
            return "autoretry_for runs it again after an error"
        if _is(options.get("bind"), True) and function.args.args:
            itself = function.args.args[0].arg
            for node in own_nodes(function):
                match node:
                    case ast.Call(ast.Attribute(ast.Name(name), "retry")) if name == itself:
                        return "it calls self.retry()"
        return ""

    def _loop_or_callback(self, module: Module, node: ast.AST) -> Callback | None:
        match node:
            case ast.For() | ast.AsyncFor() if self._project.resolve(module, node.iter) in _STREAMS:
                return Callback(node, "Kafka consumer", "offsets are committed after some messages")
            case ast.While() if any(self._calls(module, one, _POLLS) for one in ast.walk(node)):
                return Callback(node, "Kafka consumer", "offsets are committed after some messages")
            case ast.While() if any(self._calls(module, one, _RECEIVES) for one in ast.walk(node)):
                return Callback(node, "SQS consumer", _UNTIL_DELETED)
            case ast.For() if self._project.resolve(module, node.iter) in _RECEIVED and not self._is_inside(
                module, node
            ):
                return Callback(node, "SQS consumer", _UNTIL_DELETED)
            case ast.Call() if self._project.resolve(module, node.func) in _CALLBACKS:
                return self._callback(module, node)
        return None

    def _calls(self, module: Module, node: ast.AST, functions: Symbols) -> bool:
        return isinstance(node, ast.Call) and self._project.resolve(module, node.func) in functions

    def _is_inside(self, module: Module, node: ast.AST) -> bool:
        current = module.parents.get(node)
        while current is not None and not isinstance(current, Function):
            if isinstance(current, ast.While) and any(self._calls(module, one, _RECEIVES) for one in ast.walk(current)):
                return True
            current = module.parents.get(current)
        return False

    def _callback(self, module: Module, node: ast.Call) -> Callback | None:
        if any(one.arg in ("auto_ack", "no_ack") and _is(one.value, True) for one in node.keywords):
            return None
        given = [*node.args, *(one.value for one in node.keywords)]
        for one in given:
            found = self._project.function(self._project.resolve(module, one))
            if found is not None and found[0].shown == module.shown:
                return Callback(found[1], "message callback", "its broker delivers again what was not acknowledged")
        return None


def _of_lambda(module: Module, function: Function) -> tuple[str, str] | None:
    """A function at the top of a module that takes an event and a context, as AWS Lambda calls it."""
    names = [one.arg.strip("_") for one in function.args.args]
    if names[:1] == ["event"] and names[1:] in (["context"], ["ctx"], [""]) and function in module.tree.body:
        return "Lambda handler", "Lambda invokes it again after an error or a time-out, and for records that come again"
    return None


def _asks_for_post(function: Function) -> bool:
    if not function.args.args:
        return False
    request = function.args.args[0].arg
    for node in own_nodes(function):
        match node:
            case ast.Compare(ast.Attribute(ast.Name(name), "method"), _, [ast.Constant("POST")]) if name == request:
                return True
    return False


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
