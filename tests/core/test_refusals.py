"""The core's refusals, word by word: they say what is wrong with which argument, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from retrysafe import Quota
from retrysafe.errors import ConfigurationError, InvalidKey, StoreMisconfigured
from retrysafe.protocol import canonical, fingerprint, keys, transitions
from retrysafe.protocol.canonical import NotCanonical
from retrysafe.protocol.records import State
from tests.tables import each_row

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: keys.parse(1.5), InvalidKey, "A key must be a string, an int or a UUID, not float."),
    (lambda: keys.parse("a" * 256), InvalidKey, "A key has 1 to 255 characters; this one has 256."),
    (lambda: keys.parse("a\n"), InvalidKey, "The key contains a control character."),
    (lambda: keys.check_name(1, "scope"), ConfigurationError, "scope= must be text, not int."),
    (
        lambda: keys.check_name("a" * 256, "scope"),
        ConfigurationError,
        "scope= has up to 255 characters, and no control character among them.",
    ),
    (
        lambda: keys.check_name("a\n", "scope"),
        ConfigurationError,
        "scope= has up to 255 characters, and no control character among them.",
    ),
    (
        lambda: keys.check_secret(""),
        ConfigurationError,
        "secret= is empty: give at least 16 random bytes, or leave it out.",
    ),
    (
        lambda: transitions.resolution("undone"),  # type: ignore[arg-type]
        ConfigurationError,
        "outcome='undone': expected one of completed, failed, released.",
    ),
    (
        lambda: transitions.state_of("paused"),
        StoreMisconfigured,
        "Its record is 'paused', which only a newer retrysafe understands: upgrade it here, too",
    ),
    (
        Quota,
        ConfigurationError,
        'A quota needs a limit: rate="100/1m", or outstanding=1000, or both.',
    ),
    (lambda: canonical.of_value(float("nan")), NotCanonical, "nan has no canonical form"),
    (lambda: canonical.of_value(Decimal("NaN")), NotCanonical, "NaN has no canonical form"),
    (lambda: canonical.of_value(object()), NotCanonical, "a value of type object has no canonical form"),
    (lambda: canonical.of_value("\ud800"), NotCanonical, "it has no canonical form: 'utf-8' codec can't encode"),
    (
        lambda: canonical.of_json(b'{"a": 1, "a": 2}'),
        NotCanonical,
        "The JSON text has no canonical form: an object has the same member name twice",
    ),
    (lambda: canonical.of_json(b"NaN"), NotCanonical, "The JSON text has no canonical form: NaN is not JSON"),
    (
        lambda: fingerprint.of_payload({"a": object()}),
        NotCanonical,
        "'a' cannot be fingerprinted: a value of type object has no canonical form",
    ),
    (
        lambda: fingerprint.of_payload([object()]),
        NotCanonical,
        "'payload' cannot be fingerprinted: a value of type object has no canonical form",
    ),
]


@each_row(("refused", "error", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_a_refusal(refused: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=rf"(?m)^{re.escape(words)}"):
        refused()


def test_a_serving_process_is_returned() -> None:
    assert keys.check_name("é" * 255, "scope") == "é" * 255
    assert keys.check_secret("secret") == b"secret"
    assert keys.check_secret(b"secret") == b"secret"
    assert keys.check_secret(None) is None
    assert transitions.state_of("failed") is State.FAILED
    assert transitions.resolution("failed") is transitions.Transition.RESOLVE_FAILED
