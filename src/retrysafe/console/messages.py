"""The pages of messages: the outbox by topic, dead letters of outbox and inboxes, and relays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

from starlette.responses import Response

from retrysafe.admin.operator import MOST_COUNTED
from retrysafe.console.access import Right
from retrysafe.console.security import Denied
from retrysafe.console.visit import Area, ConsolePage, Visit
from retrysafe.messaging.inbox.operator import InboxOperator, name_of, place_of
from retrysafe.messaging.needs import STALLED
from retrysafe.messaging.relay.operator import OutboxOperator
from retrysafe.messaging.relay.procedures import GONE
from retrysafe.protocol.messages import DeadLetter, DeadLetterFilter, Groups, Place

AREA = Area("Messages", "/messages")
ROWS = 50
MOST_SHOWN = 65_536
"""Bytes of a payload that are shown."""
_LONGEST_NUMBER = 18
_FIELDS = ("topic", "type", "except-type", "key", "error", "consumer", "boundary")


class LetterSide(NamedTuple):
    """The outbox or the inboxes: where their dead letters are, and how they are named."""

    tab: str
    path: str
    verb: str


class Letter(NamedTuple):
    """A dead letter with the part of the address that leads to it."""

    at: str
    letter: DeadLetter
    marked: bool


class Counted(NamedTuple):
    """Dead letters by topic, type and error; ``capped`` if there are more than were looked at."""

    groups: Groups
    capped: bool

    @property
    def total(self) -> int:
        return sum(self.groups.values())


OUTBOX = LetterSide("Dead letters", "/messages/dead", "outbox dead")
INBOX = LetterSide("Inbox", "/messages/inbox", "inbox dead")


# ---------------------------------------------------------------- outbox, topics and relays


def show_status(title: str, visit: Visit) -> Response:
    """The backlog by topic, or the relays and which of them are taken for dead."""
    with visit.outbox() as outbox:
        status = outbox.status()
    shown = {"status": status, "stalled": STALLED, "gone": GONE, "command": visit.commands.line("outbox status", ())}
    return visit.page(f"{title.lower()}.html", AREA.title, title, tab=title, **shown)


def set_topic(verb: Literal["pause", "resume"], visit: Visit) -> Response:
    topic = visit.field("topic")
    if not topic:
        raise Denied(400, "No topic", "Nothing was changed: name the topic.")
    with visit.operator() as operator, visit.outbox() as outbox:
        operator.note(f"topic_{verb}d", {"topic": topic})
        (outbox.pause if verb == "pause" else outbox.resume)(topic)
    return visit.go(AREA.path)


# ---------------------------------------------------------------- dead letters


def show_dead_letters(visit: Visit) -> Response:
    chosen, after = filter_from(visit.query, OUTBOX), visit.ask("after")
    with visit.outbox() as outbox:
        found = outbox.page(chosen, _number(after or "0"), ROWS)
        more = bool(found) and bool(outbox.page(chosen, found[-1].number, 1))
        counted = count_letters(outbox, chosen)
    letters = [Letter(str(one.number), one, marked=False) for one in found]
    return _list(visit, OUTBOX, chosen, letters, counted, more=more)


def show_inbox(visit: Visit) -> Response:
    chosen, after = filter_from(visit.query, INBOX), visit.ask("after")
    with visit.inbox() as inbox:
        found = inbox.page(chosen, _place(after) if after else None, ROWS)
        more = bool(found) and bool(inbox.page(chosen, found[-1].place, 1))
        counted = count_letters(inbox, chosen)
        consumers = inbox.status()
    letters = [Letter(name_of(one.place), one.letter, one.marked) for one in found]
    return _list(visit, INBOX, chosen, letters, counted, more=more, consumers=consumers)


def _list(
    visit: Visit,
    side: LetterSide,
    chosen: DeadLetterFilter,
    letters: list[Letter],
    counted: Counted,
    *,
    more: bool,
    **values: Any,
) -> Response:
    fields = list(fields_of(chosen))
    return visit.page(
        "dead_letters.html",
        AREA.title,
        side.tab if side is OUTBOX else "Dead letters of consumers",
        tab=side.tab,
        side=side,
        letters=letters,
        groups=list(counted.groups.items())[:ROWS],
        total=counted.total,
        capped=counted.capped,
        fields=dict(fields),
        query=fields,
        more=visit.url(side.path, [*fields, ("after", letters[-1].at)]) if more else None,
        first=visit.url(side.path, fields) if visit.ask("after") else None,
        bulk=visit.url(f"{side.path}/redrive", fields),
        command=visit.commands.line(f"{side.verb} list", fields),
        **values,
    )


def show_letter(side: LetterSide, visit: Visit) -> Response:
    return _show(visit, side, _letter(visit, side))


def reveal_letter(side: LetterSide, visit: Visit) -> Response:
    one = _letter(visit, side)
    envelope = one.letter.envelope
    with visit.operator() as operator:
        operator.note("revealed", {"message_id": envelope.id, "topic": envelope.topic, "side": side.verb.split()[0]})
    return _show(visit, side, one, payload=_text(envelope.payload), headers=dict(envelope.headers))


def _letter(visit: Visit, side: LetterSide) -> Letter:
    return _dead_letter(visit) if side is OUTBOX else _inbox_letter(visit)


def _dead_letter(visit: Visit) -> Letter:
    number = _number(visit.path("at"))
    with visit.outbox() as outbox:
        found = outbox.page(after=number - 1, limit=1)
    if not found or found[0].number != number:
        raise _missing()
    return Letter(str(number), found[0], marked=False)


def _inbox_letter(visit: Visit) -> Letter:
    place = _place(visit.path("at"))
    with visit.inbox() as inbox:
        found = inbox.page(after=_before(place), limit=1)
    if not found or found[0].place != place:
        raise _missing()
    return Letter(visit.path("at"), found[0].letter, found[0].marked)


def _before(place: Place) -> Place:
    """The last place before another one."""
    died, identity = place
    number = int.from_bytes(identity)
    return (died, (number - 1).to_bytes(len(identity))) if number else (died - 1, b"\xff" * len(identity))


def _show(visit: Visit, side: LetterSide, one: Letter, **revealed: Any) -> Response:
    owner = [("consumer", one.letter.consumer), ("boundary", one.letter.boundary)]
    options = [(name, value) for name, value in owner if value]
    shown = visit.commands.line(f"{side.verb} show", options, one.letter.envelope.id)
    named = [("id", one.letter.envelope.id), *options]
    return visit.page(
        "dead_letter.html",
        AREA.title,
        "Dead letter",
        tab=side.tab,
        side=side,
        at=one.at,
        letter=one.letter,
        marked=one.marked,
        envelope=one.letter.envelope,
        payload=revealed.get("payload"),
        headers=revealed.get("headers"),
        command=shown,
        discard=visit.commands.line(f"{side.verb} discard", named),
        query=named,
    )


def _text(payload: bytes) -> str:
    more = f"\n… {len(payload) - MOST_SHOWN} bytes more" if len(payload) > MOST_SHOWN else ""
    return payload[:MOST_SHOWN].decode(errors="backslashreplace") + more


# ---------------------------------------------------------------- which are meant


def filter_from(fields: Any, side: LetterSide) -> DeadLetterFilter:
    """The dead letters that the fields of an address choose; those of the outbox have no owner."""
    names = _FIELDS if side is INBOX else _FIELDS[:-2]
    given = {name.replace("-", "_"): (fields.get(name) or [""])[-1] or None for name in names}
    return DeadLetterFilter(tuple(filter(None, fields.get("id", ()))), **given)


def fields_of(chosen: DeadLetterFilter) -> Iterator[tuple[str, str]]:
    """The fields that choose them, which are also the options of the command line."""
    for one in chosen.ids:
        yield "id", one
    for name in _FIELDS:
        if (value := getattr(chosen, name.replace("-", "_"))) is not None:
            yield name, value


def count_letters(letters: OutboxOperator | InboxOperator, chosen: DeadLetterFilter) -> Counted:
    groups = letters.count(chosen, MOST_COUNTED)
    return Counted(groups, sum(letters.count(DeadLetterFilter(), MOST_COUNTED + 1).values()) > MOST_COUNTED)


def _place(text: str) -> Place:
    try:
        return place_of(text)
    except ValueError:
        raise _nowhere() from None


def _number(text: str) -> int:
    """A number that a database takes."""
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise _nowhere()
    return int(text)


def _nowhere() -> Denied:
    return Denied(400, "No such page", "The place in the list cannot be read.")


def _missing() -> Denied:
    return Denied(404, "No such dead letter", "It may have been redriven or discarded.")


PAGES: Iterable[ConsolePage] = (
    ConsolePage("/messages", partial(show_status, "Outbox")),
    ConsolePage("/messages/relays", partial(show_status, "Relays")),
    ConsolePage("/messages/pause", partial(set_topic, "pause"), "POST", Right.PAUSE),
    ConsolePage("/messages/resume", partial(set_topic, "resume"), "POST", Right.PAUSE),
    ConsolePage("/messages/dead", show_dead_letters),
    ConsolePage("/messages/dead/{at}", partial(show_letter, OUTBOX)),
    ConsolePage("/messages/dead/{at}/reveal", partial(reveal_letter, OUTBOX), "POST", Right.REVEAL),
    ConsolePage("/messages/inbox", show_inbox),
    ConsolePage("/messages/inbox/{at}", partial(show_letter, INBOX)),
    ConsolePage("/messages/inbox/{at}/reveal", partial(reveal_letter, INBOX), "POST", Right.REVEAL),
)
