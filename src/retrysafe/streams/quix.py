"""Quix Streams: a sink that writes each record of a partition once.

Quix writes what has come of each partition, then commits its checkpoint, and reads again from the last one after a
failure (https://quix.io/docs/quix-streams/connectors/sinks/custom-sinks.html). How many records a batch has is not the
same then: what is written already is left out.
"""

# pyright: reportMissingImports=false
# Engines have environments of their own.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quixstreams.sinks import BatchingSink, SinkBatch
from quixstreams.sinks.base.item import SinkItem

from retrysafe.streams.ledger import Ledger, Span


class LedgerSink(BatchingSink):
    """A sink: ``write(items, target)`` is called with the records of one partition that are not written yet.

    ::

        app.dataframe(topic).sink(LedgerSink(ledger, write))

    ``target`` is a connection whose transaction has the position too, or a producer. All that is made of one record
    is in one batch, as long as the application makes it with ``apply(…, expand=True)``.

    Positions are the offsets of the topic. ``origin``: tells one topic of a name from another, such as a topic's id
    from Kafka's admin client: a topic that is made again has offsets from 0, which the ledger would take for written.
    """

    def __init__(
        self,
        ledger: Ledger,
        write: Callable[[list[SinkItem], Any], object],
        *,
        origin: Callable[[str], str] = lambda _topic: "",
    ) -> None:
        super().__init__()
        self._ledger, self._to, self._origin = ledger, write, origin

    def write(self, batch: SinkBatch) -> None:
        """Write a batch; called by Quix before it commits a checkpoint."""
        items = list(batch)

        def work(target: Any, first: int) -> None:
            self._to([item for item in items if item.offset >= first], target)

        span = Span(items[0].offset, items[-1].offset + 1)
        source = f"{batch.topic}/{batch.partition}"
        self._ledger.apply(source, span, work, origin=self._origin(batch.topic))
