"""``scope=``: what a boundary takes for it, and the scope of a claim."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from retrysafe import lazy
from retrysafe.claims.functions import is_coroutine_function, is_generator_function
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import keys

TAKES = 'text such as "green", or a function without arguments that returns it, such as tenant.get'
"""The accepted values of ``scope=``, in words."""


def check_scope(given: Any) -> None:
    """Refuse what can be the scope of no claim of a boundary. Raises `ConfigurationError`."""
    if given is None:
        return
    if callable(given):
        _check_function(given)
    elif isinstance(given, str):
        if not given:
            raise ConfigurationError(
                f"scope= is empty, which is the scope of all who name none: give {TAKES}, or leave it out. Is the "
                "environment variable or setting that it comes from set?"
            )
        keys.check_name(given, "scope")
    else:
        raise _neither(given)


def scope_text(given: str | Callable[[], str], boundary: str) -> str:
    """The scope of one claim, for which a function is called. Raises `ConfigurationError` for what is none."""
    if not callable(given):
        if not isinstance(given, str):
            raise _neither(given)
        return keys.check_name(given, "scope")
    returned: Any = given()
    if returned is None or returned == "":
        raise ConfigurationError(
            f"scope= of boundary {boundary!r} returned {returned!r}: no tenant or principal is known."
            + (_COPIED if "fastapi" in sys.modules else "")
        )
    if not isinstance(returned, str):
        if isinstance(returned, CoroutineType):
            returned.close()  # Python warns of one that is never awaited
        raise ConfigurationError(
            f"scope= of boundary {boundary!r} returned no text, but a value of type {type(returned).__name__}: "
            f"give {TAKES}."
        )
    return keys.check_name(returned, "scope")


_COPIED = (
    " A ContextVar that a sync dependency of FastAPI sets is lost: it runs in a thread, in a copied context. Make the "
    "dependency async def, and let it come before the claim, as dependencies=[Depends(…)] of the router do."
)


def _neither(given: object) -> ConfigurationError:
    return ConfigurationError(f"scope={given!r} is neither text nor a function: give {TAKES}.")


def _check_function(given: Callable[..., Any]) -> None:
    if is_coroutine_function(given):
        raise ConfigurationError(f"scope= is a coroutine function, and is not awaited: give {TAKES}.")
    if is_generator_function(given):
        raise ConfigurationError(f"scope= is a generator function, and nothing runs it: give {TAKES}.")
    try:
        parameters = lazy.inspect.signature(given).parameters.values()
    except (ValueError, TypeError):  # some that are written in C tell no signature
        return
    needed = [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigurationError(f"scope= takes {needed[0]!r}, and is called without arguments: give {TAKES}.")
