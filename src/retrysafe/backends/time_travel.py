"""Common parts of the backends' time travel, for tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from retrysafe.backends import counted_keys
from retrysafe.backends.documents import DocumentStore, Write, version_of
from retrysafe.protocol.records import Micros, State
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.standing import SETTLED

INSTANTS = ("lease_until", "created", "updated", "expires", "tombstone_until")
"""The instants of a record that move."""

Aged = Iterable[Ask[Any]]
"""Each ask is made when the one before it has been answered."""


def asks_of(program: Program[None]) -> Aged:
    """The asks of a program, which is sent their answers as they come."""
    answers: list[Any] = [None]
    while answers:
        try:
            request = program.send(answers.pop())
        except StopIteration:
            return
        yield Ask(request.request, lambda answer, parse=request.parse: answers.append(parse(answer)))  # type: ignore[misc]


def age_documents(store: DocumentStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """Move the instants of records and of their counts back.

    The beginning of work under way stays, by which its steps know it.
    """
    for key in keys:
        yield from asks_of(counted_keys.age(store, key, micros))
        yield from asks_of(_age_document(store, key, micros))


def _age_document(store: DocumentStore, key: bytes, micros: Micros) -> Program[None]:
    done = False
    while not done and (record := (yield from ask(store.read(key)))) is not None:
        ended = record.state in (State.COMPLETED, State.FAILED)
        sets = {name: getattr(record, name) - micros for name in INSTANTS if ended or name != "created"}
        write = Write(key, version_of(record), frozenset(), sets, settled=record.state in SETTLED.states)
        done = yield from ask(Ask(store.render(store.fill_in(write)), store.is_done))
