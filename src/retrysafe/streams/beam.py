"""Apache Beam: a DoFn that writes each group of elements once.

A runner may process an element again, in other company
(https://beam.apache.org/documentation/runtime/model/#what-happens-when-things-fail). So what is written once has to
have a name: the key of a group.
"""

# pyright: reportMissingImports=false
# Engines have environments of their own.
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam

from retrysafe.streams.ledger import Ledger, Span, source_of


class WriteOnce(beam.DoFn):
    """Writes pairs of a name and elements: ``write(elements, target)`` is called once for each name.

    ::

        lines | beam.GroupBy(file_of) | beam.ParDo(WriteOnce(ledger, write))

    ``target`` is a connection whose transaction has the name too, or a producer. Elements are written again if they
    come under another name: let the name say which elements these are, and be the same in each run, such as the file
    they are read from; in windows, let it have the window. Names stay in the ledger until its ``forget()``.

    Yields the names that were written now.
    """

    def __init__(self, ledger: Ledger, write: Callable[[Iterable[Any], Any], object]) -> None:
        super().__init__()
        self._ledger, self._to = ledger, write

    def process(self, element: tuple[Any, Iterable[Any]]) -> Iterator[Any]:
        """Write a group."""
        name, elements = element

        def work(target: Any, _first: int) -> None:
            self._to(elements, target)

        if self._ledger.apply(source_of(name), Span(0, 1), work):
            yield name

    def teardown(self) -> None:
        """Close the connection; called by Beam when it has done with this instance."""
        self._ledger.close()
