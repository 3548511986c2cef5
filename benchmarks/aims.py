"""The aims of retrysafe, and the results of a run: one table, which the summary of a run and the docs' page share.

Who misses an aim is held to a smaller one, so that a run shows what has become slower than it was.

A flat function is one written by hand with the same bytes in the record and the same guarantees, measured once in a
prototype: nobody gets below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from benchmarks.figures import FIGURES, Result, Spread, spread

Verdict = Literal["met", "missed", "not measured"]


class Aim(NamedTuple):
    """One figure of one row, and the value that it should have."""

    row: str
    figure: str
    """One of `figures.FIGURES`."""
    value: float
    smaller: float | None
    """The bound of the row as long as it misses the aim: the value of a recorded run, or the aim if that was met, with
    a margin of 15%. None for an aim without a row.
    """
    source: str
    """The source of the value."""

    @property
    def text(self) -> str:
        """The aim in words."""
        return self.words(self.value)

    def words(self, value: float) -> str:
        """Another value of the figure, as an aim in words."""
        figure = FIGURES[self.figure]
        return f"{figure.sign} {figure.words.format(value)}"

    def is_met(self, found: float, value: float) -> bool:
        """Tell whether what was found is as good as a value."""
        return found >= value if FIGURES[self.figure].more_is_better else found <= value


class Judged(NamedTuple):
    """An aim, and what came of it."""

    aim: Aim
    verdict: Verdict
    found: Spread | None

    @property
    def text(self) -> str:
        """The found value, in words."""
        if self.found is None:
            return "no such row was measured in this run"
        words = FIGURES[self.aim.figure].words
        return words.format(self.found.median)

    @property
    def fallback(self) -> str:
        """For an aim that was missed: the smaller aim, and whether it is met."""
        if self.verdict != "missed":
            return ""
        if self.aim.smaller is None:
            return "none is set"
        verdict = "met" if self.meets_smaller else "missed, too"
        return f"{self.aim.words(self.aim.smaller)}: {verdict}"

    @property
    def meets_smaller(self) -> bool:
        """True if what was found is as good as the smaller aim."""
        return (
            self.found is not None
            and self.aim.smaller is not None
            and self.aim.is_met(self.found.median, self.aim.smaller)
        )


PROTOTYPE = "a prototype with the same records reached it"
PLAN = "set before it was built"


def _flat(flat: str, prototype: str) -> str:
    return f"a flat function with the same guarantees: {flat}; a prototype: {prototype}"


AIMS = (
    Aim("memory/once sync fresh", "µs of CPU added", 20, 31, _flat("7.8", "21.5")),
    Aim("memory/once sync replay", "µs of CPU added", 11, 20, _flat("3.8", "11.8")),
    Aim("memory/once async fresh", "µs of CPU added", 24, 35, "4 µs more than sync"),
    Aim("memory/once async replay", "µs of CPU added", 15, 21, "4 µs more than sync"),
    Aim("http memory ×16/fresh", "CPU ratio", 0.50, 0.29, _flat(".66", ".41")),
    Aim("http memory ×16/replay", "CPU ratio", 1.0, 0.53, _flat("1.5", ".76")),
    Aim("http sqlite NORMAL ×16/fresh", "ratio", 0.30, 0.17, _flat(".32 to .40", ".31")),
    Aim("http sqlite NORMAL ×16/replay", "ratio", 0.65, 0.41, _flat(".97", ".66")),
    Aim("http sqlite FULL ×16/fresh", "ratio", 0.22, 0.14, _flat(".06 one by one", ".18 to .21 with shared commits")),
    Aim("http sqlite FULL ×16/replay", "ratio", 0.70, 0.42, _flat(".80", ".65 to .70")),
    Aim("http redis ×16/fresh", "ratio", 0.42, 0.16, _flat(".52 to .57", ".20 to .33")),
    Aim("http redis ×16/replay", "ratio", 0.75, 0.38, _flat("1.0", ".39 to .63")),
    Aim("http postgresql asyncpg ×16/fresh", "ratio", 0.20, 0.08, _flat(".20 to .22", ".15")),
    Aim("http postgresql asyncpg ×16/replay", "ratio", 0.60, 0.28, _flat(".73 to .96", ".36 to .44")),
    Aim("sqlite NORMAL/once fresh", "ratio", 0.45, 0.32, PROTOTYPE),
    Aim("sqlite NORMAL/once replay", "ratio", 0.30, 0.23, PROTOTYPE),
    Aim("sqlite FULL/once fresh", "ratio", 0.62, 0.48, PROTOTYPE),
    Aim("sqlite FULL/once replay", "ratio", 0.28, 0.23, PROTOTYPE),
    Aim("sqlite FULL/claim tx fresh", "ratio", 0.45, 0.26, PROTOTYPE),
    Aim("sqlite FULL/claim tx replay", "ratio", 0.22, 0.19, PROTOTYPE),
    Aim("postgresql psycopg sync/once fresh", "ratio", 0.72, 0.36, PROTOTYPE),
    Aim("postgresql psycopg sync/once replay", "ratio", 0.39, 0.30, PROTOTYPE),
    Aim("postgresql psycopg sync/step", "CPU ratio", 0.67, 0.31, "one INSERT is one statement on both sides"),
    Aim("postgresql psycopg sync/step with a row", "CPU ratio", 0.67, 0.37, "the same"),
    Aim("sqlite FULL/step", "CPU ratio", 0.67, 0.29, "the same"),
    Aim("sqlite FULL/step with a row", "CPU ratio", 0.67, 0.31, "the same"),
    Aim("postgresql asyncpg ×16/once fresh", "ratio", 1.0, 0.32, "a prototype that shares statements reached 1.2"),
    Aim("postgresql asyncpg ×16/once replay", "ratio", 0.65, 0.29, "a prototype that shares statements reached .68"),
    Aim(
        "postgresql asyncpg ×16/claim own tx fresh",
        "ratio",
        0.65,
        0.30,
        "five round trips beside four, and half the CPU saved",
    ),
    Aim("postgresql asyncpg ×16/claim tx= fresh", "ratio", 0.65, 0.34, "the same"),
    Aim("postgresql asyncpg ×16/retry storm on one key", "times", 1.1, 1.3, "the same replays on 16 keys"),
    Aim("postgresql psycopg sync/claim own tx fresh", "ratio", 0.70, 0.36, "the same"),
    Aim("postgresql psycopg sync/claim tx= fresh", "ratio", 0.70, 0.37, "the same"),
    Aim("redis/once sync fresh", "ratio", 0.39, 0.33, PROTOTYPE),
    Aim("redis/once sync replay", "ratio", 0.40, 0.34, PROTOTYPE),
    Aim("redis/once async ×16 fresh", "ratio", 0.95, 0.81, PROTOTYPE),
    Aim("redis/once async ×16 replay", "ratio", 0.85, 0.72, PROTOTYPE),
    Aim("redis/lane ×16", "ratio", 2.0, 1.70, "one pipelined connection measured three times redis-py's pool"),
    Aim(
        "relay asyncpg/rabbitmq",
        "ratio",
        0.90,
        0.61,
        "the raw client with confirms; ordering, retries and dead letters on",
    ),
    Aim("relay asyncpg/redis", "CPU ratio", 0.70, 0.59, "the raw client; ordering, retries and dead letters on"),
    Aim("relay asyncpg/nats", "ratio", 0.75, 0.19, "the raw client; ordering, retries and dead letters on"),
    Aim("relay asyncpg/kafka", "ratio", 0.75, 0.09, "the raw client; ordering, retries and dead letters on"),
    Aim("insert → consumer on RabbitMQ", "ms added", 1.5, 2.4, "a direct publish in the same process"),
    Aim(
        "inbox asyncpg/rabbitmq, single", "CPU ratio", 0.55, 0.37, "a raw consumer with a transaction for each message"
    ),
    Aim("inbox asyncpg/rabbitmq, set-based", "ratio", 0.85, 0.54, "a raw consumer with a statement for 500 messages"),
    Aim(
        "sweep psycopg/delete",
        "a second",
        50_000,
        42_000,
        "three times a hand-written sweep that pauses between its batches",
    ),
    Aim("sweep psycopg/claims while deleting", "times", 1.5, 3.1, "claims alone"),
    Aim("sweep psycopg/claims while rotating", "times", 1.5, 4.6, "claims alone"),
    Aim("claims at 1 million rows, postgresql asyncpg ×16", "ratio", 0.85, 0.72, "the same claims on an empty table"),
    Aim("claims at 10 million rows, postgresql asyncpg ×16", "ratio", 0.85, None, "the same claims on an empty table"),
    Aim("load of a million rows, postgresql psycopg/overwrite", "ratio", 0.90, None, "the ledger is two statements"),
    Aim("load of a million rows, postgresql psycopg/merge", "ratio", 0.90, None, "COPY and MERGE by hand"),
    Aim("import retrysafe", "ms of CPU added", 30, 49, "the standard library that it needs takes 22 to 26 ms"),
    Aim("crash kit, a point on sqlite", "ms", 20, 25, PLAN),
    Aim("crash kit, a point on postgresql", "ms", 50, 140, PLAN),
    Aim("client httpx, over connections", "ratio", 0.70, 0.59, PLAN),
    Aim("client httpx async, over connections", "ratio", 0.70, 0.59, PLAN),
    Aim("client httpx, in process", "µs of CPU added", 150, 180, PLAN),
    Aim("drain of 10 million messages to RabbitMQ", "ratio", 1.0, None, "the rate of its first million"),
    Aim("change data capture to RabbitMQ", "ms", 10, 70, "from commit to broker, p99 at 5,000 a second"),
    Aim("context of Kafka's transactions", "ratio", 0.90, 0.55, "the raw client"),
)


def judge(results: Mapping[str, Result]) -> list[Judged]:
    """Every aim beside the results of a run, by name of row."""
    return [_judged(aim, results.get(aim.row)) for aim in AIMS]


def _judged(aim: Aim, result: Result | None) -> Judged:
    found = None if result is None else spread(result, aim.figure)
    if found is None:
        return Judged(aim, "not measured", None)
    return Judged(aim, "met" if aim.is_met(found.median, aim.value) else "missed", found)
