"""The public surface: pinned, small, documented, and all of it in the typing file."""

from __future__ import annotations

import inspect
from pathlib import Path

import retrysafe
from retrysafe import RetrysafeError
from tests.tables import each_row

NAMES = {
    "Boundary", "Claim", "Codec", "CommandBus", "ConfigurationError", "IllegalTransition", "InProgress",
    "InvalidKey", "JSONCodec", "KeyExpired", "KeyReused", "Keyring", "Lease", "LeaseLost", "LoggingObserver",
    "Observer", "Event", "OutcomeUnknown", "Postponed", "Quota", "QuotaExceeded", "ResultNotEncodable",
    "ResultUnreadable", "RetryTransaction", "RetrysafeError", "SchemaOutdated", "StaleToken", "Step",
    "StoreMisconfigured", "StoreUnavailable", "StoredFailure", "StoredResult", "content_key", "current", "declare",
    "insert_once", "layered", "reject", "update_if", "upsert", "wait",
}  # fmt: skip


def test_the_exports_are_pinned() -> None:
    assert set(retrysafe.__all__) == NAMES
    assert len(retrysafe.__all__) == len(NAMES) <= 41


def test_every_export_is_used_in_the_typing_file() -> None:
    text = Path(__file__).parent.joinpath("typing/api.py").read_text()
    body = text.split("class Order", 1)[1]
    assert [name for name in sorted(NAMES) if name not in body] == []


@each_row("name", sorted(NAMES))
def test_every_export_has_a_docstring(name: str) -> None:
    found = getattr(retrysafe, name)
    assert inspect.getdoc(found)
    members = vars(found).items() if inspect.isclass(found) else ()
    for member, value in members:
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{name}.{member}"


def errors() -> list[type[RetrysafeError]]:
    return [getattr(retrysafe, name) for name in sorted(NAMES) if _is_error(name)]


def _is_error(name: str) -> bool:
    found = getattr(retrysafe, name)
    return inspect.isclass(found) and issubclass(found, RetrysafeError)


@each_row("error", errors(), ids=lambda error: error.__name__)
def test_every_error_says_what_happened_and_what_to_do(error: type[RetrysafeError]) -> None:
    made = error("t", "m") if error is retrysafe.StoredFailure else error("the detail")  # type: ignore[call-arg]
    text = str(made)
    assert "the detail" in text or "t: m" in text
    assert inspect.cleandoc(error.__doc__ or "").replace("``retry_after``", "1") in text
    assert error.effect_happened in ("no", "yes", "maybe")
    if error.effect_happened != "no":
        assert not error.safe_new_key, "a new key is never safe when the effect may have happened"
