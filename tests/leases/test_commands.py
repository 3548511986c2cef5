"""Commands are handled once by their id, by the handler for their type."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, CommandBus, ConfigurationError, InvalidKey, KeyReused
from tests.leases.holders import closing, jobs


@dataclass(frozen=True)
class Deposit:
    id: str
    amount: int


@dataclass(frozen=True)
class Withdraw:
    id: str
    amount: int


@dataclass(frozen=True)
class Balance:
    total: int


def _bank(tmp_path: Path) -> tuple[Boundary[Any], sqlite3.Connection]:
    file = tmp_path / "bank.db"
    boundary = jobs(f"sqlite:///{file}", effects="transactional")
    db = sqlite3.connect(file)
    db.execute("CREATE TABLE entries (amount INTEGER)")
    return boundary, db


def test_a_command_is_handled_once_in_its_transaction(tmp_path: Path) -> None:
    boundary, db = _bank(tmp_path)
    bus = CommandBus(boundary)

    def add(tx: Any, amount: int) -> Balance:
        tx.execute("INSERT INTO entries VALUES (?)", (amount,))
        return Balance(tx.execute("SELECT sum(amount) FROM entries").fetchone()[0])

    @bus.handles(Deposit)
    def deposit(command: Deposit, tx: Any) -> Balance:
        if command.amount > 100:
            tx.execute("INSERT INTO entries VALUES (?)", (command.amount,))
            raise ValueError
        return add(tx, command.amount)

    @bus.handles(Withdraw, operation="take out")
    def withdraw(command: Withdraw, *, tx: Any) -> Balance:
        return add(tx, -command.amount)

    with closing(boundary):
        assert [bus.send(Deposit("d1", 50)) for _ in range(2)] == [Balance(50)] * 2
        assert bus.send(Withdraw("d1", 20)) == Balance(30), "each type has ids of its own"
        with pytest.raises(KeyReused, match="amount"):
            bus.send(Deposit("d1", 51))
        with pytest.raises(ValueError, match=r"^$"):
            bus.send(Deposit("d2", 1000))
        with pytest.raises(ZeroDivisionError), db:
            assert bus.send(Deposit("d3", 5), tx=db) == Balance(35)
            raise ZeroDivisionError
        assert bus.send(Deposit("d3", 5)) == Balance(35), "the first one was rolled back with its transaction"
        assert deposit(Deposit("d3", 5), tx=None) == Balance(35), "a handler is guarded by itself, too"
        assert db.execute("SELECT amount FROM entries").fetchall() == [(50,), (-20,), (5,)]
        assert boundary.entrypoint.owners.keys() == {"Deposit", "take out"}
    db.close()


async def test_coroutine_functions_handle_commands() -> None:
    boundary, done = jobs(), list[str]()
    bus = CommandBus(boundary, key="amount")

    @bus.handles(Deposit)
    async def deposit(command: Deposit) -> Balance:
        done.append(command.id)
        return Balance(command.amount)

    assert [await bus.send(Deposit("a", 5)) for _ in range(2)] == [Balance(5)] * 2
    with pytest.raises(KeyReused):
        await bus.send(Deposit("b", 5))
    assert done == ["a"]
    await boundary.aclose()


def test_commands_and_handlers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    transactional, db = _bank(tmp_path)
    keyed = jobs()
    bus, other = CommandBus(keyed), CommandBus(transactional)

    @bus.handles(Deposit)
    def deposit(command: Deposit) -> None: ...

    @bus.handles(str)
    def text(command: str) -> None: ...

    class Again:
        class Deposit: ...

    with closing(keyed, transactional):
        for call, said in (
            (lambda: bus.send(Withdraw("w", 1)), "Withdraw.*for: Deposit, str"),
            (lambda: other.send(Deposit("d", 1)), "for: none"),
            (lambda: bus.handles(Deposit)(lambda command: None), "a handler already"),
            (lambda: bus.handles(Again.Deposit)(lambda command: None), "operation 'Deposit'.*belongs to"),
            (lambda: bus.handles(deposit), "the type of a command"),  # type: ignore[arg-type]
            (lambda: bus.handles(int)(lambda command, tx: None), "tx"),
            (lambda: other.handles(int)(lambda command, session: None), "session"),
            (lambda: bus.handles(int)(lambda: None), r"takes \(\)"),  # type: ignore[arg-type]
            (lambda: bus.send(Deposit("d", 1), tx=db), "effects='transactional'"),
            (lambda: CommandBus("sqlite://"), "in place of a Boundary"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigurationError, match=said):
                call()
        with pytest.raises(InvalidKey, match="id"):
            bus.send("no id")
    db.close()
