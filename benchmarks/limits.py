"""The obstacles between a row and its aim: the profile behind each aim, for those that a run missed.

"Instructions" are those of user code on CPython 3.11 for one operation, counted by the processor (perf stat -e
instructions:u) or, where that cannot be, by callgrind: unlike times they are the same on a busy machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Limit(NamedTuple):
    """Rows that share a profile, by what their names begin with, and what the profile shows."""

    rows: tuple[str, ...]
    text: str


LIMITS = (
    Limit(
        ("memory/once",),
        "There is no hot spot. A fresh call takes 229,000 instructions in 100 Python frames and a replay 151,000 "
        "in 65, and no function has more than 7% of either. The largest shares of a fresh call are the named "
        "tuples that carry a claim (request, two asks, record twice, ownership, outcome: 14%), the fingerprint of "
        "the arguments (9%), JSON of the result (7%) and the hash of the key (6%). A flat function keeps the same "
        "bytes without the layers between them, which are what lets one claim run on every store, sync and async, "
        "and be simulated.",
    ),
    Limit(
        ("http memory",),
        "In process the bare application takes 181,000 instructions, a guarded request 512,000 fresh and 248,000 "
        "replayed. Two thirds of what a fresh request adds are the claim (as `memory/once`); the rest is reading "
        "the head, hashing it and the body, and capturing and encoding the response, and no function of ours has "
        "more than 4%. Time is worse than instructions: a fresh request mispredicts 2,600 branches, the bare "
        "application alone 70 and a claim alone 500, for the two together fit neither the predictors of the "
        "processor nor its 32 KB of instruction cache. What helps is less code on the way, not a quicker piece of "
        "it.",
    ),
    Limit(
        ("http sqlite",),
        "In process a fresh request takes 860,000 instructions and a replay 397,000; on memory 512,000 and "
        "248,000. What SQLite adds is 160,000 in its own C code for three statements, building and performing "
        "them in Python, and the turn of the loop in which the writes of several requests are committed together. "
        "A replay reads 19 columns, of which sqlite3 makes Python objects at 1,500 instructions each.",
    ),
    Limit(
        ("http redis", "http postgresql"),
        "Requests that wait at the same time share a statement or a command, so that the processor time of the "
        "Python process is left. Behind uvicorn a fresh request on Redis takes 841,000 instructions and a replay "
        "475,000, the bare application 270,000: the claim and the response as on memory, then packing and reading "
        "the record, the pipeline that is shared, and a future and a wake-up of the event loop for each answer.",
    ),
    Limit(
        ("sqlite FULL/once", "sqlite NORMAL/once"),
        "A fresh call takes 464,000 instructions, 129,000 by hand; a replay 256,000, 67,000 by hand. SQLite "
        "itself takes 160,000 of ours (a look, INSERT and UPDATE) and 72,000 by hand, for a row of 19 columns "
        "with checks and the clock of the database where the other has six. The rest is Python: the claim that "
        "every store has (as `memory/once`), and about 60,000 for building and performing the statements.",
    ),
    Limit(
        ("sqlite FULL/claim tx", "sqlite NORMAL/claim tx"),
        "A fresh claim in a transaction of its own takes 656,000 instructions, 147,000 by hand, in eight "
        "statements around the work instead of four: a look before the transaction is opened, so that replays "
        "open none; a savepoint named by the key, by which an end recognises its own transaction (a name of its "
        "own is parsed anew: 17,000 instructions); and the savepoint to which a failed handler is rolled back. A "
        "replay takes 240,000, 67,000 by hand.",
    ),
    Limit(
        ("postgresql psycopg",),
        "A fresh call takes 608,000 instructions in two round trips, 241,000 by hand; a replay 382,000, 147,000 "
        "by hand; a claim in a transaction of its own 1,089,000 in six, 409,000 by hand in five: the sixth is the "
        "savepoint to which a failed handler is rolled back. What is added is the claim that every store has, and "
        "Python around each statement: a connection lent and looked after (its process, its transaction, its "
        "notices, a deadline).",
    ),
    Limit(
        ("postgresql asyncpg ×16/once", "postgresql asyncpg ×16/retry"),
        "A fresh call takes 582,000 instructions, 215,000 by hand; a replay 346,000, 129,000 by hand. Claims that "
        "are ready in one turn of the loop share a statement, here all 16, so that what is left is Python: the claim "
        "that every store has, a future and a wake-up for each answer, and reading its row of 20 columns. By hand 16 "
        "connections commit side by side, where one statement after the other is committed here; the database "
        "shares two cores with both, so that the ratio of the wall swings with whatever else runs.",
    ),
    Limit(
        ("postgresql asyncpg ×16/claim",),
        "A claim in a transaction of its own takes 1,300,000 instructions in six round trips, 453,000 by hand in "
        "five; with `tx=` 991,000 in five. The sixth is the savepoint to which a failed handler is rolled back. "
        "The opening and the end have a task each, which comes to its end when the caller is cancelled; each round "
        "trip has a timer for its deadline and a future of asyncpg, which cannot send two statements of a "
        "transaction in one message.",
    ),
    Limit(
        ("redis/",),
        "One by one a fresh call takes 559,000 instructions, 424,000 by hand; a replay 338,000, 186,000 by hand. "
        "With 16 at once it is 511,000 and 319,000, fewer than by hand (814,000 and 356,000), since they share a "
        "pipeline. What is left is the claim that every store has, and packing and reading the record.",
    ),
    Limit(
        ("relay asyncpg/rabbitmq", "insert → consumer"),
        "Processor time is below the raw client's; what a message waits for is PostgreSQL and the broker on the "
        "same two cores: the commit of the insert, the notification, the relay's read and mark, and RabbitMQ's "
        "confirm, which a direct publish has alone.",
    ),
    Limit(
        ("relay asyncpg/redis",),
        "A message takes 200,000 instructions, fewer than the 236,000 of the raw client, whose pipeline packs "
        "every field. Time is not less, for a batch of 500 messages is walked several times (read, planned, "
        "published, judged, marked) and does not fit the cache of the processor: it misses 1,200 times a message, "
        "where the raw client misses 240 times.",
    ),
    Limit(
        ("relay asyncpg/nats",),
        "The floor has no database. Of the time of a relay's event loop nats-py has a third, as on the other side: "
        "building each message and sending it. Attributes as headers, with what ASCII cannot say escaped, take 6%. "
        "The rest is what a relay is: reading rows and their JSON, lanes and waves, and five round trips to PostgreSQL "
        "for each of 64 buckets, which wait for the confirms of their own messages before they commit.",
    ),
    Limit(
        ("relay asyncpg/kafka",),
        "The raw client is written in C, sends batches from threads of its own, and has no database: 13 to 17 µs of "
        "processor time a message, where a relay to Redis spends 22 to 26 before anything of Kafka. A quarter of what "
        "the profile of the relay shows is making records and their headers, 15% the sockets of PostgreSQL, 12% the "
        "client's produce, 8% reading rows. A third of the wall is waiting: each of 64 buckets commits when the "
        "brokers have acknowledged its own messages, one bucket after the other on two cores.",
    ),
    Limit(
        ("change data",),
        "Half of the event loop's time at 5,000 messages a second is aio-pika's library that encodes frames, of which "
        "each message has three; a sixth is reading and decoding the log, a tenth sending. At 5,000 a second they fill "
        "most of a core, and the process that writes, PostgreSQL's sender of the log and RabbitMQ share two: what is "
        "committed waits for the batch before it, so that p99 is a few batches. A relay that polls, in the same "
        "turns, has several times the p99.",
    ),
    Limit(
        ("context of",),
        "Both sides make the same calls of the client, in C. Ours polls record by record, so that a partition that is "
        "taken away in between leaves the batch, where the floor asks for 500 at once; notes what each partition "
        "began and ended with; and waits for room where the client's queue is full. That is 2 µs a record.",
    ),
    Limit(
        ("inbox asyncpg/rabbitmq",),
        "A message takes 2.4 million instructions, 1.3 million for a raw consumer with a transaction for each. It "
        "has six statements instead of four: the claim, the savepoint to which a failed handler is rolled back, "
        "and the result, where the raw consumer only writes. Each has a timer for its deadline and a "
        "future. Who consumes many takes them in batches or sets, which are as quick as the raw consumer.",
    ),
    Limit(
        ("sweep",),
        "Claims beside a sweep are measured at their 99th percentile, on two cores that PostgreSQL, the sweep and "
        "the clients share: one vacuum or checkpoint in a turn is the difference. The sweep itself deletes 1,000 "
        "rows at a time and pauses between.",
    ),
    Limit(
        ("claims at",),
        "The key is a hash, so a claim touches one page of the index at random: what does not fit the cache is "
        "read. The CPU of the client is the same at any size. 10 million rows take three minutes to make, and are "
        "measured with `--full` only: .87 of the floor on the day of this record, which met the aim.",
    ),
    Limit(
        ("import retrysafe",),
        "211 million instructions, beside 28 million of an interpreter that only starts. A quarter of the time makes "
        "the 48 named tuples of the modules that a first claim needs: typing compiles each annotation, and "
        "collections each constructor. The typing module itself and OpenSSL for hashlib take 7% each; the rest is "
        "finding and reading 51 modules of ours and 57 of the standard library. Modules of features (encryption, "
        "quotas, migrations, tx=, layers) are loaded by who uses them: with them it was 47.5 ms instead of 41.",
    ),
    Limit(
        ("crash kit",),
        "A point is a fresh state of the store, one run of the operation to the point where it is stopped, and "
        "one retry: making the state and one charge is 3 ms on SQLite and 48 ms on PostgreSQL, where every point "
        "creates its tables anew, and each run opens its connections.",
    ),
    Limit(
        ("postgresql psycopg sync/step", "sqlite FULL/step"),
        "Both sides write one row in one statement. Ours selects from the record, so that it is written only while "
        "the key is held (twice the time of a plain INSERT in SQLite); the rest is Python: the digest of the step's "
        "arguments, JSON of its result, entering and leaving, and building the statement's parameters.",
    ),
    Limit(
        ("client",),
        "The journal's two writes, or the checks of each answer, beside a request of httpx over one connection, "
        "whose wall time swings by as much from turn to turn.",
    ),
    Limit(
        ("load of a million rows",),
        "Both sides send the same rows by COPY, in which the database takes most of the time; ours adds 0.1 µs of "
        "Python for each row, which is tagged and compared with its partition, and a merge sorts its rows by key.",
    ),
    Limit(
        ("drain of",),
        "No row measures this: what it would measure is not in this release, or takes longer than a run of 15 minutes.",
    ),
)
"""The longest beginning that fits a row counts."""


def limit_of(row: str) -> Limit:
    """The profile behind a row. Raises `LookupError` for a row without one."""
    return max(_fitting(row), key=lambda found: found[0])[1]


def _fitting(row: str) -> Sequence[tuple[int, Limit]]:
    fitting = [(len(start), limit) for limit in LIMITS for start in limit.rows if row.startswith(start)]
    if not fitting:
        raise LookupError(f"{row!r} has an aim, and no profile in benchmarks/limits.py.")
    return fitting
