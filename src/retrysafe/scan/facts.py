"""The facts about a project as a whole: the routed functions, and the frameworks that a middleware guards."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from retrysafe.scan.module import Module
from retrysafe.scan.project import Project
from retrysafe.scan.source import SourceFile, read
from retrysafe.scan.symbols import Symbols

_TELLING = (
    b"urlpatterns",
    b"Route(",
    b"add_post",
    b"add_put",
    b"add_patch",
    b"add_route",
    b"web.post",
    b"add_url_rule",
)
_TELLING_MORE = (b"retrysafe", b"acks_late", b"ACKS_LATE")
_DJANGO_ROUTES = Symbols("django.urls.{path,re_path}", "django.conf.urls.url")
_ROUTES = Symbols("starlette.routing.Route", "{starlette,fastapi}.**.add_route")
_AIOHTTP = Symbols(
    "aiohttp.web.{post,put,patch}", "aiohttp.web.Application().router.{add_post,add_put,add_patch,add_route}"
)
_FLASK = Symbols("flask.{Flask,Blueprint}().add_url_rule")
_GUARDS = {
    "asgi": ("fastapi", "starlette"),
    "starlette": ("fastapi", "starlette"),
    "wsgi": ("flask", "django"),
    "flask": ("flask",),
    "aiohttp": ("aiohttp",),
    "django": ("django",),
    "drf": ("django",),
}
"""The frameworks that a middleware of `retrysafe.http` guards, by its module."""
CHANGING = frozenset({"POST", "PUT", "PATCH"})


class Facts:
    """The findings in the modules that route or configure."""

    def __init__(self) -> None:
        self.routed: dict[str, tuple[str, frozenset[str]]] = {}
        """Symbols of handlers with their framework and methods; no methods if the handler itself asks for them."""
        self.guarded: set[str] = set()
        """Frameworks whose requests all pass a guard."""
        self.acks_late = False
        """Celery acknowledges messages after the task."""


def gather(project: Project, files: Iterable[SourceFile]) -> Facts:
    """Read the files that may tell something; those that cannot be parsed tell nothing."""
    facts = Facts()
    for file in files:
        try:
            data = read(file.path)
            if any(one in data for one in (*_TELLING, *_TELLING_MORE)):
                _gather(project, project.open(file), facts)
        except (ValueError, OSError, RecursionError):
            continue
    return facts


def _gather(project: Project, module: Module, facts: Facts) -> None:
    for node in module.nodes:
        match node:
            case ast.Call():
                _routes(project, module, node, facts)
                _guards(project, module, node, facts)
                if any(one.arg == "task_acks_late" and _is_true(one.value) for one in node.keywords):
                    facts.acks_late = True
            case ast.Assign(targets=[ast.Name(name) | ast.Attribute(attr=name)]):
                if name in ("CELERY_TASK_ACKS_LATE", "CELERY_ACKS_LATE", "task_acks_late") and _is_true(node.value):
                    facts.acks_late = True
            case ast.Constant(str(text)) if text.startswith("retrysafe.http."):
                facts.guarded.update(_GUARDS.get(text.split(".")[2], ()))


def _routes(project: Project, module: Module, node: ast.Call, facts: Facts) -> None:
    symbol = project.resolve(module, node.func)
    if symbol in _DJANGO_ROUTES and len(node.args) > 1:
        facts.routed[project.resolve(module, node.args[1])] = ("Django", frozenset())
    elif symbol in _ROUTES and len(node.args) > 1:
        facts.routed[project.resolve(module, node.args[1])] = ("Starlette", methods_of(node) & CHANGING)
    elif symbol in _AIOHTTP:
        handler, method = node.args[-1] if node.args else None, symbol.rpartition(".")[2].removeprefix("add_").upper()
        if method == "ROUTE" and node.args and isinstance(node.args[0], ast.Constant):
            method = str(node.args[0].value).upper()
        facts.routed[project.resolve(module, handler)] = ("aiohttp", frozenset({method}) & CHANGING)
    elif symbol in _FLASK:
        view = next((one.value for one in node.keywords if one.arg == "view_func"), None)
        handler = view if view is not None else node.args[2] if len(node.args) > 2 else None
        facts.routed[project.resolve(module, handler)] = ("Flask", methods_of(node) & CHANGING)


def methods_of(node: ast.Call) -> frozenset[str]:
    """The methods that a call lists, as ``methods=`` or as its first argument."""
    lists = [one.value for one in node.keywords if one.arg in ("methods", "request_method_list")]
    if not lists and node.args and isinstance(node.args[0], ast.List | ast.Tuple):
        lists = [node.args[0]]
    constants = (one for found in lists for one in ast.walk(found) if isinstance(one, ast.Constant))
    return frozenset(str(one.value).upper() for one in constants)


def _guards(project: Project, module: Module, node: ast.Call, facts: Facts) -> None:
    added = isinstance(node.func, ast.Attribute) and node.func.attr == "add_middleware"
    wrapped = project.resolve(module, node.func)
    for symbol in [wrapped, *(project.resolve(module, one) for one in node.args if added)]:
        if symbol.startswith("retrysafe.http.") and symbol.endswith("Middleware"):
            facts.guarded.update(_GUARDS.get(symbol.split(".")[2], ()))


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
