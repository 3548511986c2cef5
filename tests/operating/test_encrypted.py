"""Operators and boundaries that encrypt: looking needs no key, answering does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from retrysafe import ConfigurationError, Keyring, ResultUnreadable, StoredFailure
from retrysafe.claims.notes import without_note
from retrysafe.claims.sealing import MEDIA_TYPE
from retrysafe.protocol.records import EffectiveState
from tests.operating.conftest import Command, Place

KEY = Keyring.generate()
RING = Keyring({"2026-11": KEY})


def write(shelf: Place, changes: str) -> None:
    with closing(sqlite3.connect(shelf.operators.removeprefix("sqlite:///"))) as database, database:
        database.execute(f"UPDATE retrysafe_records SET {changes}")


def test_a_key_is_shown_without_the_keys(place: Place, command: Command) -> None:
    place.completed(encryption=RING)
    done = command("keys", "show", "--store", place.operators, "--key", "K", "--boundary", place.name, "--result")
    assert done.code == 0
    assert "encrypted with 2026-11" in done.out
    assert "encrypted media type application/vnd.retrysafe+json" in done.out
    assert "first" not in done.out


def test_an_altered_label_is_shown_as_what_it_is(shelf: Place, command: Command) -> None:
    shelf.completed(encryption=RING)
    write(shelf, "result = x'ff'")
    done = command("keys", "show", "--store", shelf.operators, "--key", "K", "--boundary", shelf.name, "--result")
    assert done.code == 0
    assert "cut off" in done.out


@pytest.mark.parametrize(("outcome", "answer"), [("completed", {"paid": 42}), ("failed", "never")])
def test_an_answer_by_hand_is_encrypted_with_the_boundarys_keys(place: Place, outcome: Any, answer: Any) -> None:
    record = place.unknown(encryption=RING)
    assert record.result is not None
    assert record.result.media_type == MEDIA_TYPE, "what is in doubt says why"
    with pytest.raises(ConfigurationError, match="encrypts what it stores, with the key '2026-11'"):
        place.operator().resolve(record, outcome, result=answer)
    assert place.record("K").effective_state is EffectiveState.UNKNOWN
    assert place.operator(encryption=RING).resolve(record, outcome, result=answer).done
    stored = place.record("K").result
    assert stored is not None
    assert without_note(stored).media_type == MEDIA_TYPE  # type: ignore[union-attr]
    if outcome == "completed":
        assert place.retry(encryption=RING) == answer
    else:
        with pytest.raises(StoredFailure, match="never"):
            place.retry(encryption=RING)


def test_the_command_takes_the_keys_from_the_environment(shelf: Place, command: Command) -> None:
    shelf.unknown(encryption=RING)
    named = ("--store", shelf.operators, "--key", "K", "--boundary", shelf.name)
    answer = ("keys", "resolve", *named, "--as", "completed", "--result", '{"paid": 42}')
    done = command(*answer)
    assert done.code == 2
    assert "--encryption-keys-env" in done.err
    done = command(*answer, "--encryption-keys-env", "SHOP_KEYS")
    assert done.code == 2
    assert "SHOP_KEYS" in done.err
    done = command(*answer, "--encryption-keys-env", "SHOP_KEYS", SHOP_KEYS=f"2026-11:{KEY}")
    assert done.code == 0, done.err
    assert KEY not in done.out + done.err
    assert shelf.retry(encryption=RING) == {"paid": 42}


def test_release_and_expire_need_no_key(place: Place) -> None:
    record = place.unknown(encryption=RING)
    assert place.operator().release(record).done
    assert place.retry(encryption=RING) == "again"
    assert place.operator().expire(place.record("K")).done
    assert place.retry(encryption=RING) == "again"


def test_an_answer_without_the_keys_can_be_read_when_that_is_allowed(shelf: Place) -> None:
    """The record of an attempt that died does not show that its boundary encrypts."""
    shelf.unknown(encryption=RING)
    write(shelf, "result = NULL, media_type = NULL, codec_version = NULL")
    assert shelf.operator().resolve(shelf.record("K"), "completed", result=7).done
    with pytest.raises(ResultUnreadable, match="operator"):
        shelf.retry(encryption=RING)
    assert shelf.retry(encryption=Keyring({"2026-11": KEY}, unencrypted="read")) == 7
