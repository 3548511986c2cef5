"""Options of the command line, which are the keyword arguments of publishers, consumers and declarations.

Their source is read and not imported: the help shows the options of every broker, and needs the library of none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.cloudevents import MODES

HELP = {
    "keep": "how long settled entries, or a session without a consumer, are kept; or forever",
    "lease": "how long a dead consumer keeps its messages",
    "mode": "the mode of CloudEvents (binary)",
    "ordered": "whether queues and topics are FIFO, or messages have sessions (yes)",
    "partitions": "spread each topic over so many queues or streams (default: one)",
    "poll": "how long the broker is asked to wait for messages",
    "prefetch": "unsettled messages of a queue or partition in memory, at most",
    "prefetch_bytes": "bytes of them, at most",
    "prefix": "what the names of topics, streams or subjects begin with",
    "redelivery_window": "how long after its publication a message may come again, where the broker does not tell",
    "replicas": "servers that keep each message (default: as they are set to)",
    "timeout": "how long confirms are waited for (10s)",
}
"""Help for what several have; other arguments have the first clause of their description."""
NAMES = {"timeout": "broker_timeout"}
"""The names of options that are not those of their arguments."""
METAVARS = {"credentials": "FILE", "prefix": "TEXT"}
ELSEWHERE = ("group", "region", "endpoint")
"""Arguments that the command has an option for, or the URL has."""
NO_WORDS = ("Iterable[Observer]", "Mapping[str, str]", "Properties")
"""Types whose values no word can give: such arguments have no option."""


class Option(NamedTuple):
    """An option that makes an argument.

    name: with underscores.
    argument: the one that it makes.
    metavar: stands for the value in the help.
    type: parses the value.
    choices: the only values, if there are such.
    convert: makes the argument of the parsed value.
    """

    name: str
    argument: str
    help: str
    metavar: str | None = None
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] | None = None
    convert: Callable[[Any], Any] = str


@cache
def read_options(source: str, name: str) -> tuple[Option, ...]:
    """Read the options of a function or class: the keyword arguments that a word can give, with their descriptions."""
    named = _by_name(ast.parse(source).body)
    node = named[name]
    described = _descriptions(ast.get_docstring(node) or "")
    while isinstance(node, ast.ClassDef):
        node = _by_name(node.body).get("__init__") or named[ast.unparse(node.bases[0])]
    options = [
        _option(argument.arg, ast.unparse(argument.annotation), default, described.get(argument.arg, ""))
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if argument.arg not in ELSEWHERE
    ]
    return tuple(option for option in options if option is not None)


def _by_name(nodes: Sequence[ast.stmt]) -> dict[str, Any]:
    return {
        node.name: node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _descriptions(docstring: str) -> dict[str, str]:
    section = docstring.partition("Arguments:\n")[2]
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    return {name: re.split(r"[;.]\s|\.$", " ".join(text.split()))[0] for name, text in found}


def _option(argument: str, annotation: str, default: ast.expr | None, description: str) -> Option | None:
    kind = annotation.removesuffix(" | None")
    if kind in NO_WORDS:
        return None
    form = {"choices": ast.literal_eval(kind[8:-1])} if kind.startswith("Literal[") else FORMS.get(kind)
    if form is None:
        raise ConfigurationError(f"{argument}: no option has the type {annotation}; add it to FORMS or to NO_WORDS.")
    value = default.value if isinstance(default, ast.Constant) else None
    shown = f" ({value})" if isinstance(value, str | int) and value not in ("", False) else ""
    option = Option(NAMES.get(argument, argument), argument, HELP.get(argument, f"{description}{shown}"), **form)
    if argument in METAVARS:
        option = option._replace(metavar=METAVARS[argument])
    return option._replace(convert=_unless_forever) if kind != annotation and value is not None else option


def _is_yes(value: str) -> bool:
    return value == "yes"


def _unless_forever(value: str) -> str | None:
    return None if value == "forever" else value


def _numbers(value: str) -> list[int]:
    for number in value.split(","):
        if not number.strip().isdecimal():
            raise ConfigurationError(f"{value!r}: {number!r} is no number.")
    return [int(number) for number in value.split(",")]


FORMS: Mapping[str, Mapping[str, Any]] = {
    "Any": {"metavar": "URL"},
    "Duration": {"metavar": "TIME"},
    "Iterable[int]": {"metavar": "N,…", "convert": _numbers},
    "Mode": {"choices": MODES},
    "bool": {"choices": ("yes", "no"), "convert": _is_yes},
    "int": {"type": int, "metavar": "N", "convert": int},
    "str": {"metavar": "NAME"},
}
"""The options for arguments of these types."""
