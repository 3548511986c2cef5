"""The public names of each HTTP integration, read from its source: importing them all would need every framework."""

from __future__ import annotations

import ast

from docparts import ROOT
from docparts.markdown import prose

NAMES = {
    "asgi": ("IdempotencyMiddleware",),
    "fastapi": ("Idempotency", "IdempotencyMiddleware", "check_preconditions"),
    "starlette": ("IdempotencyMiddleware", "idempotent", "user", "check_preconditions"),
    "litestar": (
        "IdempotencyPlugin",
        "IdempotencyMiddleware",
        "PreconditionUnmet",
        "show_unmet",
        "check_preconditions",
    ),
    "wsgi": ("IdempotencyMiddleware",),
    "flask": ("Idempotency", "idempotent", "check_preconditions"),
    "django": ("idempotent", "IdempotencyMiddleware", "check_preconditions"),
    "drf": (
        *("Idempotency", "IdempotentMixin", "idempotent", "IdempotentSchema", "AutoSchema", "PreconditionUnmet"),
        "check_preconditions",
    ),
    "aiohttp": ("idempotency", "idempotent", "check_preconditions"),
    "api_gateway": ("idempotent",),
    "grpc": ("IdempotencyInterceptor", "AsyncIdempotencyInterceptor"),
    "policy": ("policy",),
}
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def integrations() -> str:
    """One section per module."""
    return "\n".join(_module(module, names) for module, names in NAMES.items())


def _module(module: str, names: tuple[str, ...]) -> str:
    tree = ast.parse((ROOT / f"src/retrysafe/http/{module}.py").read_text(encoding="utf-8"))
    found = {node.name: node for node in tree.body if isinstance(node, Definition)}  # of overloads the last
    parts = [f"## `retrysafe.http.{module}`\n"]
    for name in names:
        node = found[name]
        parts.append(f"### `{module}.{name}`\n\n```text\n{_signature(node)}\n```\n\n{prose(ast.get_docstring(node))}")
    return "\n".join(parts)


def _signature(node: Definition) -> str:
    """The call of a function, or of a class by its `__init__`."""
    if not isinstance(node, ast.ClassDef):
        return _call(node.name, node.args)
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    return _call(node.name, made[0].args) if made else f"class {node.name}"


def _call(name: str, arguments: ast.arguments) -> str:
    first = [*arguments.posonlyargs, *arguments.args][:1]
    shown = ast.unparse(arguments).replace("=UNSAID", "")
    if first and first[0].arg == "self":
        shown = shown.removeprefix("self").removeprefix(", /").removeprefix(", ")
    line = f"{name}({shown})"
    return line if len(line) <= 88 else f"{name}(\n    {shown}\n)"
