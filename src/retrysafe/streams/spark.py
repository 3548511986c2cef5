"""Spark Structured Streaming: a function for ``foreachBatch`` that writes each micro-batch once.

Spark calls the function again, with the same batch id, when the driver dies before the batch is in the checkpoint
(https://spark.apache.org/docs/latest/streaming/apis-on-dataframes-and-datasets.html#foreachbatch).
"""

# pyright: reportMissingImports=false
# Engines have environments of their own.
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from retrysafe.errors import ConfigurationError
from retrysafe.streams.ledger import Ledger, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY = "sql.streaming.queryId"
"""The local property in which Spark has the id of the query whose batch is running; the checkpoint keeps it."""


def each_batch(ledger: Ledger, write: Callable[[DataFrame, Any], object]) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch``: ``write(frame, target)`` is called once for each batch that is committed.

    ::

        stream.writeStream.foreachBatch(each_batch(ledger, write)).option("checkpointLocation", path).start()

    ``write`` runs on the driver, with the frame of the batch and the target of the ledger: a connection whose
    transaction has the position too, or a producer. What executors write by themselves, as with ``foreachPartition``,
    is not in that transaction: let them fill a staging table that ``write`` empties first and then reads.

    A driver that starts takes the job over: another one that is still alive raises `Fenced`. Batch ids are counted by
    the checkpoint. Without it they begin at 0 again, which raises `OriginChanged`, and a batch that was skipped raises
    `PositionMissing`.
    """
    taken: list[int] = []

    def run(frame: DataFrame, batch: int) -> None:
        if not taken:
            taken.append(ledger.take(""))

        def work(target: Any, _first: int) -> None:
            write(frame, target)

        ledger.apply("", Span(batch, batch + 1), work, origin=_query_of(frame), epoch=taken[0], gaps=False)

    return run


def _query_of(frame: DataFrame) -> str:
    query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY)
    if not query:
        raise ConfigurationError("Spark does not say which query this batch is of: pass each_batch to foreachBatch.")
    return str(query)
