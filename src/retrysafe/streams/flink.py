"""Apache Flink: a keyed function that writes each element of a key once.

After a failure Flink goes on from its last checkpoint, and processes again what came after it. Elements are counted by
key in Flink's own state, which returns to the checkpoint; the ledger does not, and tells which of them are written.
"""

# pyright: reportMissingImports=false
# Engines have environments of their own.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyflink.common import Types
from pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ValueStateDescriptor

from retrysafe.streams.ledger import Ledger, Span, source_of


class WriteOnce(KeyedProcessFunction):
    """Writes the elements of a keyed stream: ``write(element, target)`` is called once for each of them.

    ::

        stream.key_by(key_of).process(WriteOnce(ledger, write))

    ``target`` is a connection whose transaction has the position too, or a producer; each element has a transaction.
    The elements of a key must come in the same order when they are processed again: they do from one partition of
    Kafka, and from one file; not from a union of several, nor after a ``rebalance()``. The source must return to the
    checkpoint too, which ``from_collection`` does not.

    ``origin``: names the state. Start a job without its checkpoint or savepoint, and elements are counted from 0 again:
    give another origin then, which raises `OriginChanged` instead of taking what comes for written.
    """

    def __init__(self, ledger: Ledger, write: Callable[[Any, Any], object], origin: str = "") -> None:
        self._ledger, self._to, self._origin = ledger, write, origin
        self._written: Any = None

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called by Flink before the first element."""
        self._written = runtime_context.get_state(ValueStateDescriptor("retrysafe", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        """Write an element."""
        number = self._written.value() or 0

        def work(target: Any, _first: int) -> None:
            self._to(value, target)

        source = source_of(ctx.get_current_key())
        self._ledger.apply(source, Span(number, number + 1), work, origin=self._origin, gaps=False)
        self._written.update(number + 1)

    def close(self) -> None:
        """Close the connection; called by Flink behind the last element."""
        self._ledger.close()
