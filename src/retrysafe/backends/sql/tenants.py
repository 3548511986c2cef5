"""Schema per tenant: a claim that names no tenant is refused under the schema of one."""

from __future__ import annotations

from retrysafe.errors import ConfigurationError


def under_tenant(reason: str, *, ended: bool = False) -> ConfigurationError:
    """The refusal of a claim without a tenant where each tenant has a schema, for the ``reason`` that says so.

    ``ended``: its work has run, in a transaction that the refusal undoes.
    """
    done = "The transaction of the work is undone" if ended else "Nothing was run"
    return ConfigurationError(
        f"The claim is made under the schema of one tenant ({reason}), and names no tenant: with the same key, another "
        f"tenant would get its answer. {done}. Give Boundary(…, scope=…) what names the tenant, such as a "
        "function that returns the schema, or name it in claim(key, scope=…)."
    )
