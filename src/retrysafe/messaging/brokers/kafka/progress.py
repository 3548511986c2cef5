"""The settled part of a partition, and its form for the group. Pure.

A group has one offset for each partition: all before it is settled. Messages of different keys are settled in any
order, so what is committed is the offset of the first unsettled one. The text that goes with it in the commit tells the
next owner the rest: which messages behind it are settled, and up to where messages may have been handed out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

_MOST, _LEAST = 4000, 64
"""Characters of the text; brokers take 4096 by default (``offset.metadata.max.bytes``). None is much shorter."""
_TEXT = re.compile(r"retrysafe (\d{1,19})((?: \d{1,19}(?:-\d{1,19})?)*)", re.ASCII)


class OffsetCommit(NamedTuple):
    """The group's record of a partition."""

    offset: int
    upto: int
    text: str


class Progress:
    """One partition, as long as one consumer has it.

    ``reserve``: how many messages may be handed out that were received after a commit, before there is another one.
    """

    def __init__(self, start: int, text: str | None, reserve: int) -> None:
        self.next = start
        """Behind the last message that was received; below 0 while the beginning of the partition is unknown."""
        self._reserve = reserve
        self._settled: dict[int, bool] = {}
        """Every message from the first unsettled one on, in order, and whether it is settled."""
        self._before, known = _read(text)
        self._known = deque(sorted(known))
        """Up to where others may have handed out, and which of these were settled."""
        self.granted = 0
        """Up to where messages may be handed out: who takes the partition over is told so."""
        self.is_owed = False
        """True if something was settled since the last commit was made."""
        self._most = _MOST

    def receive(self, offset: int) -> bool:
        """A message has come; whether it is to be handled, and was not settled by others."""
        if offset < self.next:
            return False
        self.next = offset + 1
        while self._known and self._known[0][1] < offset:
            self._known.popleft()
        is_settled = bool(self._known) and self._known[0][0] <= offset
        if is_settled and not self._settled:
            return False
        self._settled[offset] = is_settled
        return not is_settled

    def is_again(self, offset: int) -> bool:
        """Tell whether others may have handed it out."""
        return offset < self._before

    def settle(self, offset: int) -> None:
        if offset in self._settled:
            self._settled[offset] = self.is_owed = True
        while self._settled and self._settled[first := next(iter(self._settled))]:
            del self._settled[first]

    @property
    def low(self) -> int:
        """All messages before this offset are settled."""
        return next(iter(self._settled), self.next)

    @property
    def ahead(self) -> int:
        """The number of messages from the first unsettled one on."""
        return len(self._settled)

    @property
    def settled(self) -> int:
        """The number of settled ones among them."""
        return sum(self._settled.values())

    def commit(self, *, leaving: bool = False) -> OffsetCommit:
        """Return the next commit.

        ``leaving``: nothing more is handed out before the next owner reads it.
        """
        self.is_owed = False
        upto = max(self.next + (0 if leaving else self._reserve), self._before)
        return OffsetCommit(self.low, upto, _render(upto, self._ranges(), self._most))

    def shorten(self) -> bool:
        """Write shorter texts from now on, as the broker takes no longer ones; False: there is none much shorter."""
        self._most //= 2
        return self._most >= _LEAST

    def grant(self, commit: OffsetCommit) -> None:
        self.granted = max(self.granted, commit.upto)

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """The first and last offsets of settled messages between which there is no unsettled one."""
        for is_settled, of in groupby(self._settled.items(), key=lambda one: one[1]):
            if is_settled:
                offsets = [offset for offset, _ in of]
                yield offsets[0], offsets[-1]
        for first, last in self._known:
            if last >= self.next:
                yield max(first, self.next), last


def _render(upto: int, ranges: Iterator[tuple[int, int]], most: int) -> str:
    """The text of a commit. What does not fit in is left out, and those messages are handed out again."""
    text = f"retrysafe {upto}"
    for first, last in ranges:
        more = f" {first}" if first == last else f" {first}-{last}"
        if len(text) + len(more) > most:
            break
        text += more
    return text


def _read(text: str | None) -> tuple[int, list[tuple[int, int]]]:
    """Up to where messages may have been handed out, and the ranges of settled ones; of a text of ours."""
    found = _TEXT.fullmatch(text or "")
    if found is None:
        return 0, []
    pairs = [part.split("-") for part in found[2].split()]
    return int(found[1]), [(int(pair[0]), int(pair[-1])) for pair in pairs]
