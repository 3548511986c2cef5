"""Markdown: tables, docstrings and signatures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *map(list, rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: double backquotes become single ones, and sections of names become lists."""
    text = inspect.cleandoc(docstring or "")
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    out: list[str] = []
    listing = False
    for line in text.splitlines():
        if line in ("Arguments:", "Attributes:"):
            listing = True
            out += [f"**{line[:-1]}**", ""]
        elif listing and (match := re.match(r"    (\w+(?:, \w+)*): (.*)", line)):
            out.append(f"- {codes(match[1].split(', '))}: {match[2]}")
        elif listing and line.startswith("        "):
            out.append("  " + line.strip())
        else:
            listing = listing and not line.strip()
            out.append(line)
    return "\n\n".join(_listed(part) for part in "\n".join(out).strip().split("\n\n")) + "\n"


def _listed(paragraph: str) -> str:
    """A paragraph of nothing but names and their meanings as a list; any other as it is."""
    lines = paragraph.splitlines()
    named = [re.match(r"([a-z_]+(?:, [a-z_]+)*): (.*)", line) for line in lines]
    if (
        not named[:1]
        or named[0] is None
        or not all(one or line.startswith("    ") for one, line in zip(named, lines, strict=True))
    ):
        return paragraph
    return "\n".join(
        f"- {codes(one[1].split(', '))}: {one[2]}" if one else f"  {line.strip()}"
        for one, line in zip(named, lines, strict=True)
    )


def paragraphs(docstring: str | None) -> list[str]:
    """The paragraphs of a docstring, each as one line of Markdown."""
    return [" ".join(part.split()) for part in prose(docstring).split("\n\n")]


def codes(names: Iterable[str]) -> str:
    """Names as code, those that are empty left out."""
    return ", ".join(f"`{name}`" for name in names if name)


def signature(function: Callable[..., Any], name: str) -> str:
    """A signature as one line or one argument per line, without the module paths of types."""
    found = inspect.signature(function)
    shown = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    parts: list[str] = []
    for parameter in shown:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        elif parts[-1:] and parts[-1] != "/" and "/" not in parts and _was_positional_only(shown, parameter):
            parts.append("/")
        parts.append(_parameter(parameter))
    if shown and shown[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    returned = "" if found.return_annotation is found.empty else f" -> {type_(found.return_annotation)}"
    line = f"{name}({', '.join(parts)}){returned}"
    if len(line) <= 88:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _was_positional_only(shown: list[inspect.Parameter], parameter: inspect.Parameter) -> bool:
    before = shown[shown.index(parameter) - 1]
    return before.kind is before.POSITIONAL_ONLY and parameter.kind is not parameter.POSITIONAL_ONLY


_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _parameter(parameter: inspect.Parameter) -> str:
    annotation = "" if parameter.annotation is parameter.empty else f": {type_(parameter.annotation)}"
    if parameter.default is parameter.empty:
        star = _STARS.get(parameter.kind, "")
        return f"{star}{parameter.name}{annotation}"
    default = repr(parameter.default)
    if type(parameter.default).__name__ == "Reject":
        default = "reject()"
    if default.startswith("<"):
        default = "…"
    return f"{parameter.name}{annotation} = {default}"


def type_(annotation: Any) -> str:
    """An annotation without the module paths of types."""
    text = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(text, str):
        text = inspect.formatannotation(annotation)
    return re.sub(r"\b[a-z_]+\.(?=[A-Za-z])", "", text)
