"""The faults that this project expects, by number: their effect for a user, the defence, and its limits.

Each is injected by a test that carries its number (`@pytest.mark.fault(…)`). One that no test injects gives the reason
in ``unmet`` (its subject does not exist yet) or in ``documented`` (there is no defence: a page names the cost).
`docs/reference/faults.md` is made of this table, and `tests/proving/test_catalogue.py` keeps it honest.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A row of the catalogue; each text is a sentence at most."""

    row: int
    fault: str
    seen: str
    """Its effect for the user."""
    defence: str
    left: str = ""
    """The limit of the defence, if there is one."""
    unmet: str = ""
    """The reason why nothing can inject it yet; a row with this has no test."""
    documented: str = ""
    """The page under docs/ that names its cost, such as "explanation/which-store.md#redis"."""
    nothing_to_remove: str = ""
    """The reason why no break takes the defence out: the test has then been seen to fail in another way."""


STEPS = "there are no steps and recovery points"

CATALOGUE: dict[str, tuple[Fault, ...]] = {
    "Processes": (
        Fault(1, "A crash before the claim.", "The retry runs the work.", "The key is claimed before the work begins."),
        Fault(
            2,
            "The claim commits, and its reply is lost.",
            "Nothing; the work goes on.",
            "The attempt reads its claim back by its own id.",
        ),
        Fault(
            3,
            "A crash after the claim, before the effect.",
            "`InProgress` until the lease ends, then the retry runs the work.",
            "A retry takes over with a higher token; an external key becomes *unknown*.",
            "An operator or a probe settles an unknown key.",
        ),
        Fault(
            4,
            "A crash in a transaction, after the effect.",
            "The retry runs the work.",
            "Effect and record are rolled back together.",
        ),
        Fault(
            5,
            "The effect happened elsewhere, and its completion is missing.",
            "Keyed work runs again; an external key raises `OutcomeUnknown`.",
            "The derived key makes the provider recognise the retry, and external work never runs again by itself.",
            "An operator or a probe settles an unknown key.",
        ),
        Fault(
            6,
            "The work is completed, and its response is lost.",
            "The retry gets the same answer, byte for byte.",
            "The response is stored before it is sent.",
        ),
        Fault(
            7,
            "A message is published, and not marked as published.",
            "Consumers receive it twice.",
            "It goes out again under the same id.",
            "A consumer without an inbox handles it twice.",
        ),
        Fault(
            8,
            "A message is marked, and not published.",
            "Nothing.",
            "A message is marked only after the broker has confirmed it.",
        ),
        Fault(
            9,
            "A message's work is committed, and its acknowledgement is lost.",
            "The message comes again, and nothing runs.",
            "The inbox has the message's record, and the redelivery is acknowledged.",
        ),
        Fault(
            10,
            "A crash between a step and its recovery point.",
            "It resumes at the recovery point.",
            "Each step has its own key.",
            unmet=STEPS,
        ),
        Fault(
            11,
            "A crash in a compensation.",
            "The compensation resumes.",
            "It is recorded like a step.",
            unmet=STEPS,
        ),
        Fault(
            12,
            "A crash while a lease is being renewed.",
            "`InProgress` until the lease ends.",
            "The lease ends at its time, and a retry takes over.",
        ),
    ),
    "Network": (
        Fault(
            13,
            "A request to the store is dropped.",
            "Nothing, or `StoreUnavailable`.",
            "It is sent again, or raised as certainly not sent.",
        ),
        Fault(
            14,
            "A response of the store is dropped.",
            "Nothing, or `StoreUnavailable`.",
            "The attempt reads back its own write.",
        ),
        Fault(
            15,
            "An answer takes longer than the lease.",
            "The late attempt raises `LeaseLost`.",
            "The fencing token refuses its outcome.",
            "Effects outside the store that it had already caused stay.",
        ),
        Fault(
            16,
            "The same request arrives twice.",
            "One runs; the other is refused with `InProgress`, or waits.",
            "One insert of the key wins.",
        ),
        Fault(
            17,
            "An old completion arrives after a new claim.",
            "Nothing.",
            "The fencing token refuses it.",
        ),
        Fault(
            18,
            "A connection is open on one side only.",
            "`StoreUnavailable` after the deadline.",
            "Each statement has a deadline.",
            "Statements on an engine of yours need a timeout of their own.",
        ),
        Fault(
            19,
            "A connection breaks in the middle of a request's body.",
            "The retry runs the work.",
            "The key is claimed after the whole body is read.",
        ),
        Fault(
            20,
            "A lease cannot be renewed.",
            "Async work is cancelled; sync work finds out at `ensure_held()`.",
            "The fencing token refuses the outcome.",
            "Sync work that never calls `ensure_held()` runs to its end.",
        ),
    ),
    "SQL": (
        Fault(
            21,
            "A failover loses a commit that the replica had not received.",
            "The key is new again.",
            "Weak settings are reported as `store_warning`, and `retrysafe status` shows them.",
            "Leased work runs again, external effects too.",
            documented="explanation/which-store.md#postgresql",
        ),
        Fault(
            22,
            "The wait for a synchronous replica is cancelled.",
            "The commit counts, and a `store_warning` reports it.",
            "The warning of PostgreSQL is read on each commit.",
            "A failover may still lose that commit.",
        ),
        Fault(
            23,
            "A serialization failure (40001).",
            "Nothing, or `RetryTransaction` in your own transaction.",
            "A transaction of the boundary's own runs again.",
        ),
        Fault(
            24,
            "A deadlock (40P01).",
            "Nothing, or an error after the last try.",
            "It is tried again, a bounded number of times, with random pauses.",
        ),
        Fault(
            25,
            "Two attempts insert the same key (23505).",
            "The loser gets the winner's answer.",
            "The loser reads the winner's record.",
        ),
        Fault(
            26,
            "A statement runs into its timeout.",
            "The error of the database.",
            "The transaction and its record are rolled back.",
        ),
        Fault(
            27,
            "A lock is not granted in time.",
            "`StoreUnavailable`; over HTTP, 503 with `Retry-After`.",
            "The claim is given up; no timeout is set in your transaction.",
        ),
        Fault(
            28,
            "The connection dies during COMMIT.",
            "Nothing, or `StoreUnavailable`.",
            "The record is read back by key and token.",
        ),
        Fault(
            29,
            "A replica lags.",
            "`StoreMisconfigured` if `store=` leads to a standby.",
            "Claims and replays read the primary.",
        ),
        Fault(
            30,
            "PgBouncer in transaction mode stands between.",
            "Nothing, or `ConfigurationError` if a session is needed.",
            "No prepared statement is named, and no LISTEN, SET or session lock is used.",
        ),
        Fault(
            31,
            "SQLite is busy.",
            "A short wait, then `StoreUnavailable`.",
            "Writers use BEGIN IMMEDIATE and wait for a bounded time.",
        ),
        Fault(
            32,
            "A cancelled task leaves a transaction open.",
            "Nothing.",
            "Its connection is discarded.",
        ),
        Fault(
            33,
            "An old snapshot of MySQL hides the winner's record.",
            "The loser gets the winner's answer.",
            "The row count of a conditional write decides.",
        ),
        Fault(
            34,
            "No connection is free.",
            "`StoreUnavailable` before the work.",
            "The claim gets its connection before anything runs.",
        ),
        Fault(
            35,
            "Numbers commit in another order than they were drawn.",
            "Nothing.",
            "Nothing is paged by a highest number: records by key hash, messages by their presence.",
        ),
    ),
    "Redis": (
        Fault(
            36,
            "The server evicts records.",
            "A refusal before the first claim, or a `store_warning`.",
            "Policies other than noeviction are refused; a missing maxmemory is warned of.",
        ),
        Fault(
            37,
            "A failover loses a claim.",
            "Two attempts may run at once.",
            "Keyed work has the same derived keys in both.",
            "An external effect may happen twice.",
            documented="how-to/run-on-redis-or-valkey.md#when-code-can-still-run-twice",
        ),
        Fault(
            38,
            "Power is lost with appendfsync everysec.",
            "The keys of the last second or two are new again.",
            "`retrysafe status` shows the setting.",
            "Their work runs again.",
            documented="how-to/run-on-redis-or-valkey.md#when-code-can-still-run-twice",
        ),
        Fault(
            39,
            "A series of commands is carried out in part.",
            "Nothing.",
            "Each step is one script, which is atomic.",
        ),
        Fault(
            40,
            "The server forgets its scripts.",
            "Nothing.",
            "They are loaded again, and the step is repeated.",
        ),
        Fault(
            41,
            "A slot moves, or keys lie in two slots.",
            "Nothing.",
            "Redirections are followed; a record is one hash-tagged key.",
        ),
        Fault(
            42,
            "The server's clock jumps.",
            "A lease ends early or late.",
            "The fencing token decides who may write.",
        ),
        Fault(
            43,
            "A command is cancelled before its answer.",
            "Nothing.",
            "No later command gets the cancelled one's answer.",
        ),
    ),
    "DynamoDB": (
        Fault(
            44,
            "A conditional write times out, and the SDK's own retry fails its condition.",
            "Nothing.",
            "The record is read back; the attempt's id in it means success.",
        ),
        Fault(
            45,
            "Time to live removes items late.",
            "Nothing.",
            "Conditions judge expiry; removal only frees space.",
        ),
        Fault(
            46,
            "The service forgets a request token after ten minutes.",
            "Nothing.",
            "No request token is relied on.",
        ),
        Fault(
            47,
            "Requests are throttled.",
            "Slower claims, or `StoreUnavailable`.",
            "They are sent again after a pause, within the lease.",
        ),
        Fault(
            48,
            "Reads are eventually consistent.",
            "Nothing.",
            "Every read asks for consistency.",
        ),
        Fault(
            49,
            "An item is too large.",
            "An error before the effect, or `ResultNotEncodable`.",
            "The key is completed, and its result is withheld.",
            "Retries do not get the result.",
        ),
    ),
    "Brokers": (
        Fault(
            50,
            "A message is delivered again.",
            "Nothing runs.",
            "The inbox recognises source and id, and it is acknowledged.",
        ),
        Fault(
            51,
            "A publisher's confirmation is lost.",
            "Consumers receive the message twice.",
            "It goes out again under the same id.",
            "A consumer without an inbox handles it twice.",
        ),
        Fault(
            52,
            "Partitions move while a handler runs.",
            "The message comes again to the new owner.",
            "The old consumer's outcome is refused.",
        ),
        Fault(
            53,
            "A message can never be handled or published.",
            "A dead letter, after a bounded number of attempts.",
            "Its lane goes on.",
            "An operator redrives or skips it.",
        ),
        Fault(
            54,
            "Every message is rejected at once.",
            "Each key waits for its own retry.",
            "Messages wait in the consumer, and are not sent back to the broker.",
        ),
        Fault(
            55,
            "A new leader repeats and reorders messages.",
            "Nothing, if you use sequences for order.",
            "Ids are recognised, and sequences are kept per key.",
        ),
        Fault(
            56,
            "A broker forgets the ids it has seen.",
            "Consumers may receive a message twice.",
            "The inbox remembers longer.",
        ),
        Fault(
            57,
            "A broker hides a message for a shorter time than the handler needs.",
            "Nothing.",
            "A heartbeat extends it, and a consumer that lost it is refused.",
        ),
        Fault(
            58,
            "A broker's transaction commits late.",
            "The old process gets an error, and reads again.",
            "The broker refuses the replaced producer.",
            nothing_to_remove="Kafka itself refuses the commit of a producer whose id another has",
        ),
        Fault(
            59,
            "A dead letter is redriven after the window.",
            "The event `message_late`, and `message.late` in the handler.",
            "It is marked as late.",
            "It counts as new work.",
        ),
    ),
    "Clocks": (
        Fault(60, "A worker's clock is wrong.", "Nothing.", "The store's clock decides leases and windows."),
        Fault(61, "A clock jumps back.", "Nothing.", "A lease is never prolonged by it."),
        Fault(
            62,
            "A clock jumps forward.",
            "A key may be taken over early.",
            "The fencing token refuses the first holder.",
        ),
        Fault(
            63,
            "Daylight saving, leap seconds.",
            "Nothing.",
            "Instants are microseconds since the epoch, and durations are monotonic.",
        ),
        Fault(
            64,
            "A worker is suspended beyond its lease.",
            "It raises `LeaseLost` when it goes on.",
            "The fencing token refuses its write.",
            "Effects that it had outside the store stay.",
        ),
    ),
    "Payloads": (
        Fault(
            65,
            "A body is not valid JSON.",
            "The application's 400, or ours if `canonical_json=True`.",
            "The application's answer is stored as any 4xx; ours consumes no key.",
        ),
        Fault(66, "A body is huge.", "413.", "It is refused at the limit, while it arrives."),
        Fault(
            67,
            "NaN and Infinity.",
            "`ResultNotEncodable` for a result; a payload is refused before the claim.",
            "They have no form in JSON that both sides read alike.",
        ),
        Fault(
            68,
            "A JSON object has two members of one name.",
            "A retry must have the same bytes; with `canonical_json=True`, a refusal.",
            "Bytes are compared as they came.",
        ),
        Fault(
            69,
            "One text has several Unicode forms.",
            "Two forms are two keys.",
            "Keys are compared as they are.",
        ),
        Fault(70, "Shortened hashes collide.", "Nothing.", "All 32 bytes are stored, with a version."),
        Fault(
            71,
            "A stored value runs code when it is read.",
            "Nothing.",
            "Nothing is pickled, and no stored name is imported.",
        ),
        Fault(
            72,
            "This version cannot read a stored answer.",
            "`ResultUnreadable`.",
            "The work never runs again for it.",
        ),
    ),
    "Clients": (
        Fault(73, "One key is used for two requests.", "`KeyReused`; over HTTP, 422.", "The payload's hash differs."),
        Fault(74, "A tenant guesses another one's key.", "Nothing.", "The scope is part of a key's identity."),
        Fault(75, "A client floods the store with new keys.", "`QuotaExceeded`.", "Each scope has its quota."),
        Fault(76, "A client sends slowly.", "Nothing.", "The key is claimed when the body is complete."),
        Fault(
            77,
            "One key is used many times at once.",
            "One runs; the others are refused, or wait for its result.",
            "One insert of the key wins.",
        ),
    ),
    "Retention": (
        Fault(
            78,
            "A retry comes after the window.",
            'New work, or `KeyExpired` with `on_expired="refuse"`.',
            "The key is refused for as long as it is remembered.",
            "By default it is new work.",
            documented="how-to/windows-and-key-memory.md#after-the-window",
        ),
        Fault(79, "A sweep meets running work.", "Nothing.", "The removal's own condition spares it."),
        Fault(
            80,
            "Very many records are to be removed.",
            "Claims go on.",
            "Small batches pass over locked records.",
        ),
        Fault(81, "A sweeper dies.", "Nothing.", "The next one goes on."),
    ),
    "Operations": (
        Fault(
            82,
            "A migration runs under traffic.",
            "Claims go on.",
            "New columns come first, and removals later.",
        ),
        Fault(83, "Two versions run at once.", "Nothing.", "Each reads and fences the other's records."),
        Fault(84, "The disk is full.", "`StoreUnavailable` before the effect.", "The claim is refused."),
        Fault(
            85,
            "A process crashes at the same key again and again.",
            "A count of attempts, and events about it.",
            "Leased attempts are counted before their effect.",
            "A transactional attempt that crashes leaves no count.",
        ),
        Fault(86, "SIGTERM meets a relay.", "Nothing.", "It finishes its batch, or leaves it whole."),
        Fault(
            87,
            "A process forks.",
            "Nothing, or `ConfigurationError` where a SQLite file is in use.",
            "The child opens its own connections and heartbeats.",
        ),
        Fault(88, "Many threads use a boundary.", "Nothing.", "No two share a connection."),
        Fault(
            89,
            "A task is cancelled, at any await.",
            "Its cancellation.",
            "The record stays valid, and no key stays locked.",
            "An outcome cut off by the end of `asyncio.run` counts as a crash.",
        ),
        Fault(
            90,
            "A backup is restored.",
            "Keys recorded since the backup are new again.",
            "Attempts after the restore have higher tokens than all before it.",
            "Leased work since then runs again on a retry, with no warning.",
            documented="explanation/when-code-can-still-run-twice.md#by-store",
        ),
    ),
}

FAULTS: dict[int, Fault] = {fault.row: fault for group in CATALOGUE.values() for fault in group}
