"""Messages added on ORM sessions: the session sends its changes first, so that the row is locked before the message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from retrysafe.messaging import Outbox


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orm_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str]


class Shop:
    """An engine on a file with one order, and the statements that it has sent."""

    def __init__(self, path: Path) -> None:
        self.url = f"{path}/shop.db"
        self.engine = sqlalchemy.create_engine(f"sqlite:///{self.url}")
        Base.metadata.create_all(self.engine)
        with Session(self.engine) as session:
            session.add(Order(id=1, status="new"))
            session.commit()
        self.outbox = Outbox(self.engine, source="/shop")
        self.sent: list[str] = []
        self.listen(self.engine)

    def listen(self, engine: Any) -> None:
        """Note the statements of another engine, too."""
        event.listen(engine, "before_cursor_execute", lambda *given: self.sent.append(given[2].split("(")[0].strip()))

    @property
    def writes(self) -> list[str]:
        return [sql.rpartition(" SET")[0] or sql for sql in self.sent if sql.startswith(("INSERT", "UPDATE orm"))]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop of this test's own."""
    made = Shop(tmp_path)
    yield made
    made.engine.dispose()


ORDERED = ["UPDATE orm_orders", "INSERT INTO retrysafe_outbox"]


@pytest.mark.parametrize("way", ["autoflush", "no autoflush", "no_autoflush block", "scoped", "many"])
def test_a_session_is_flushed_before_the_message_gets_its_place(way: str, shop: Shop) -> None:
    sessions = sessionmaker(shop.engine, autoflush=way != "no autoflush")
    session: Any = scoped_session(sessions) if way == "scoped" else sessions()
    session.get(Order, 1).status = "paid"
    with session.no_autoflush if way == "no_autoflush block" else nullcontext():
        if way == "many":
            from retrysafe.messaging import Message

            shop.outbox.add_many(session, [Message("orders.paid", {}, key="1")])
        else:
            shop.outbox.add(session, "orders.paid", {}, key="1")
    assert shop.writes == ORDERED
    session.commit()
    session.close()


async def test_an_async_session_as_well(shop: Shop) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{shop.url}")
    shop.listen(engine.sync_engine)
    outbox = Outbox(engine, source="/shop")
    async with AsyncSession(engine, autoflush=False) as session:
        order = await session.get(Order, 1)
        assert order is not None
        order.status = "paid"
        await outbox.aadd(session, "orders.paid", {}, key="1")
        await session.commit()
    assert shop.writes == ORDERED
    await engine.dispose()


def test_a_hook_of_the_session_may_add_messages(shop: Shop) -> None:
    """It runs inside the flush, which cannot be begun again there."""
    with Session(shop.engine) as session:
        event.listen(session, "after_flush", lambda *given: shop.outbox.add(session, "orders.paid", {}, key="1"))
        order = session.get(Order, 1)
        assert order is not None
        order.status = "paid"
        session.commit()
    assert shop.writes == ORDERED


def test_errors_of_the_flush_are_the_callers(shop: Shop) -> None:
    with Session(shop.engine) as session:
        session.add(Order(id=1, status="twice"))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            shop.outbox.add(session, "orders.placed", {}, key="1")
