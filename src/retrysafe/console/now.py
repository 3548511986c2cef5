"""The first page: what needs a person now, and what is in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from starlette.responses import Response

from retrysafe.admin.operator import Operator, Sample
from retrysafe.admin.rendering import duration
from retrysafe.admin.runs import FoundRuns, of_stranded
from retrysafe.backends.commands import Commands
from retrysafe.console.visit import Area, ConsolePage, Visit
from retrysafe.messaging.inbox.operator import Consuming
from retrysafe.messaging.needs import Need, of_inboxes, of_outbox
from retrysafe.messaging.relay.procedures import GONE
from retrysafe.protocol.records import Count, EffectiveState, Filter, counted

AREA = Area("Now", "/")
GLANCED = 5
"""Pages of runs that are looked at for those that are stranded: the page of runs looks at more."""
UNKNOWN = Filter(states=frozenset({EffectiveState.UNKNOWN}))


class Share(NamedTuple):
    """Records of one boundary in one state: their number, or their share of a sample in percent."""

    boundary: str
    state: EffectiveState
    records: int
    percent: float


def show(visit: Visit) -> Response:
    with visit.operator() as operator:
        unknown, sample = operator.count(UNKNOWN), operator.sample()
        oldest = _oldest(operator) if unknown.records else 0.0
        stranded = operator.find_stranded(pages=GLANCED)
    status, inboxes = None, list[Consuming]()
    if visit.console.has_messages:
        with visit.outbox() as outbox:
            status = outbox.status()
        with visit.inbox() as inbox:
            inboxes = inbox.status()
    commands = visit.commands
    needs = [
        *_of_keys(unknown, oldest, commands),
        *_of_runs(stranded, commands),
        *(of_outbox(status, commands) if status else ()),
        *of_inboxes(inboxes, commands),
    ]
    return visit.page(
        "now.html",
        "Now",
        "Now",
        needs=needs,
        unknown=unknown,
        oldest=oldest,
        status=status,
        inbox_dead=sum(one.dead for one in inboxes),
        gone=[relay for relay in status.relays if relay.silent >= GONE] if status else [],
        shares=shares(sample),
        sample=sample,
    )


def shares(sample: Sample) -> list[Share]:
    counted = Counter((record.boundary, record.reported_state) for record in sample.records)
    total = max(1, len(sample.records))
    return [Share(boundary, state, number, 100 * number / total) for (boundary, state), number in counted.most_common()]


def _oldest(operator: Operator) -> float:
    """Seconds for which the oldest unknown key waits, where the store has them by age."""
    found = next(operator.each(UNKNOWN), None)
    return 0.0 if found is None else (found.now - found.updated) / 1e6


def _of_keys(unknown: Count, oldest: float, commands: Commands) -> Iterator[Need]:
    if unknown.records:
        number = counted(unknown.records, capped=unknown.capped)
        what = "key is" if unknown.records == 1 and not unknown.capped else "keys are"
        text = f"{number} {what} unknown: their effect may have happened, and every retry is refused until they are "
        text += f"settled. The oldest waits for {duration(oldest)}."
        yield Need(text, "/unknown", commands.line("keys list", [("state", "unknown")]))


def _of_runs(stranded: FoundRuns, commands: Commands) -> Iterator[Need]:
    if stranded.runs:
        yield Need(of_stranded(stranded), "/runs?stranded=yes", commands.line("runs list", [("stranded", "")]))


PAGES = (ConsolePage("/", show),)
