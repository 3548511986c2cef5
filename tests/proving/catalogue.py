"""The faults that this project expects, by number: what happens, and what is promised then.

Each is injected by a test that carries its number (`@pytest.mark.fault(…)`). One that no test injects says why, in
``unmet`` (what it needs does not exist yet) or in ``documented`` (it is not defended against: a page says what it
costs). `docs/reference/faults.md` is made of this table, and `tests/proving/test_catalogue.py` keeps it honest.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A row of the catalogue."""

    row: int
    fault: str
    """What goes wrong."""
    promise: str
    """What comes of it all the same."""
    unmet: str = ""
    """Why nothing can inject it yet; a row with this has no test."""
    documented: str = ""
    """The page under docs/ that says what it costs, such as "explanation/which-store.md#redis"."""
    nothing_to_remove: str = ""
    """Why no break takes the defence out, where none can: the test has then been seen to fail in another way."""


STEPS = "there are no steps and recovery points"

CATALOGUE: dict[str, tuple[Fault, ...]] = {
    "Processes": (
        Fault(1, "a crash before the claim", "nothing is recorded; the retry runs the work"),
        Fault(2, "the claim is committed, its reply lost", "the attempt reads its own claim back, by its id"),
        Fault(
            3,
            "a crash after the claim, before the effect",
            "keyed: the next caller takes over with a higher token when the lease has lapsed; external: *unknown*",
        ),
        Fault(4, "a crash in a transaction, after the effect", "effect and record are rolled back together"),
        Fault(
            5,
            "the effect has happened elsewhere, and its completion is missing",
            "the derived key, a probe, or *unknown* decides; the work is never run again blindly",
        ),
        Fault(6, "completed, and the response is lost", "the retry gets the stored result, byte by byte"),
        Fault(7, "a message is published and not marked as such", "it goes out again under the same id"),
        Fault(8, "a message is marked and not published", "cannot be: marking comes after publishing"),
        Fault(9, "a message's work is committed, its acknowledgement lost", "redelivery only acknowledges"),
        Fault(10, "a crash between a step and its recovery point", "resumed there, under the step's own key", STEPS),
        Fault(11, "a crash in a compensation", "the compensation is resumed", STEPS),
        Fault(12, "a crash while a lease is renewed", "the lease lapses at its time, and the key is taken over"),
    ),
    "Network": (
        Fault(13, "a request to the store is dropped", "tried again, or raised as certainly not sent"),
        Fault(14, "a response of the store is dropped", "what was written is read back and recognised"),
        Fault(15, "an answer takes longer than the lease", "the late attempt is fenced: nothing of it is stored"),
        Fault(16, "the same request arrives twice", "one wins; the other is told so, or waits"),
        Fault(17, "an old completion arrives after a new claim", "it changes no record"),
        Fault(18, "a connection is open on one side only", "a deadline ends the wait: `StoreUnavailable`"),
        Fault(19, "a connection breaks in the middle of a request's body", "no key is claimed"),
        Fault(
            20,
            "a lease cannot be renewed",
            "async work is cancelled before the lease ends, sync work sees it at `ensure_held()`; both are fenced",
        ),
    ),
    "SQL": (
        Fault(
            21,
            "a failover loses a commit that its replica had not received",
            "transactional: the effect is lost with its record. Leased: the work runs again, external effects too. "
            "`retrysafe status` tells how durable a commit is, and weak settings are warned of",
            documented="explanation/which-store.md#postgresql",
        ),
        Fault(
            22,
            "the wait for a synchronous replica is cancelled",
            "the commit counts, and that the replica may lack it is told",
        ),
        Fault(
            23,
            "a serialization failure (40001)",
            "the whole transaction again where it is ours, `RetryTransaction` where it is the caller's",
        ),
        Fault(24, "a deadlock (40P01)", "again, a bounded number of times, with jittered pauses"),
        Fault(25, "a lost race for the unique key (23505)", "the loser reads the winner's record"),
        Fault(26, "a statement runs into its timeout", "the transaction is rolled back, and the record with it"),
        Fault(
            27,
            "a lock is not given in time",
            "`StoreUnavailable`, over HTTP 503 with `Retry-After`; no timeout is ever set in the caller's transaction",
        ),
        Fault(28, "the connection dies in COMMIT", "the record is read back, by key and token"),
        Fault(29, "a replica lags", "claims and replays read the primary; a server in recovery is refused"),
        Fault(
            30,
            "PgBouncer in transaction mode stands between",
            "works: nothing is prepared by name, no LISTEN, SET or session lock used; what needs a session is refused",
        ),
        Fault(31, "SQLite is busy", "writers begin with BEGIN IMMEDIATE, and wait no longer than their bound"),
        Fault(32, "a cancelled task leaves a transaction open", "its connection is discarded"),
        Fault(33, "a stale snapshot of MySQL hides the winner", "the conditional write's count of rows decides"),
        Fault(34, "no connection is free", "refused before the claim, and nothing has run"),
        Fault(
            35,
            "numbers are committed in another order than they were drawn",
            "records are paged by their key's hash, a relay takes what is there: never by a highest number",
        ),
    ),
    "Redis": (
        Fault(
            36,
            "the server evicts records",
            "a policy other than noeviction is refused before the first claim; warned of while no maxmemory is set",
        ),
        Fault(
            37,
            "a failover loses a claim",
            "two attempts may run at once: keyed, under the same derived keys; external, the effect may happen twice",
            documented="how-to/run-on-redis-or-valkey.md#when-code-can-still-run-twice",
        ),
        Fault(
            38,
            "power is lost with appendfsync everysec",
            "the last second or two of writes are gone; `retrysafe status` names the setting",
            documented="how-to/run-on-redis-or-valkey.md#when-code-can-still-run-twice",
        ),
        Fault(39, "a series of commands is carried out in part", "cannot be: each step is one script"),
        Fault(40, "the server forgets its scripts", "they are loaded again, and the step is repeated"),
        Fault(
            41, "a slot moves, or keys lie in two slots", "redirections are followed; a record is one hash-tagged key"
        ),
        Fault(42, "the server's clock jumps", "leases end early or late; the token still decides who may write"),
        Fault(43, "a command is cancelled in mid-flight", "no later command gets its answer"),
    ),
    "DynamoDB": (
        Fault(
            44,
            "a conditional write times out, and the SDK's own retry of it fails its condition",
            "the record is read back: with the attempt's own id in it, the write succeeded",
        ),
        Fault(45, "time to live removes late", "conditions judge expiry; removal only tidies up"),
        Fault(46, "the service forgets a request token after ten minutes", "no request token is relied on"),
        Fault(47, "requests are throttled", "asked again with back-off, and the lease is not lost over it"),
        Fault(48, "reads are eventually consistent", "every read of ours is consistent"),
        Fault(49, "an item is too large", "refused before the effect, or completed with its result withheld"),
    ),
    "Brokers": (
        Fault(50, "a message is delivered again", "it is acknowledged, and nothing runs"),
        Fault(51, "a publisher's confirmation is lost", "the message goes out again under the same id"),
        Fault(52, "partitions move in the middle of a handler", "the old consumer is fenced"),
        Fault(53, "a message can never be handled, or published", "bounded attempts, then a dead letter"),
        Fault(
            54, "everything is rejected at once", "each lane waits by itself, and nothing is sent back to the broker"
        ),
        Fault(55, "a new leader repeats and reorders", "ids are recognised, sequences kept per key"),
        Fault(56, "a broker forgets what it has seen", "the inbox remembers longer"),
        Fault(
            57,
            "a lease, or the time for which a broker hides a message, is shorter than the handler",
            "a heartbeat renews the lease, of an attempt as of a stream, and who lost it is fenced",
        ),
        Fault(
            58,
            "a broker's transaction commits late",
            "who was taken over from is refused by the broker, and begins anew",
            nothing_to_remove="Kafka itself refuses the commit of a producer whose id another has",
        ),
        Fault(59, "a dead letter comes back after the window", "it is flagged as late"),
    ),
    "Clocks": (
        Fault(60, "a worker's clock is wrong", "the store's time decides leases and windows"),
        Fault(61, "a clock jumps back", "no lease becomes longer by it"),
        Fault(62, "a clock jumps forward", "a lease is taken over early, and its first holder fenced"),
        Fault(63, "daylight saving, leap seconds", "instants are microseconds since the epoch, durations monotonic"),
        Fault(64, "a worker is suspended beyond its lease", "its stale write is refused"),
    ),
    "Payloads": (
        Fault(
            65,
            "a body that is no JSON",
            "the application's 400 is stored like any 4xx; where the layer itself parses, it answers 400 and no key "
            "is consumed",
        ),
        Fault(66, "a huge body", "refused at the limit, while it streams in"),
        Fault(67, "NaN and Infinity", "refused: they have no one spelling"),
        Fault(
            68, "members of one name in a JSON object", "bytes are compared as they came; canonical JSON refuses them"
        ),
        Fault(69, "one text in several Unicode forms", "keys are opaque: two forms are two keys"),
        Fault(70, "hashes that were cut short meet", "full digests of 32 bytes, with the version of its making"),
        Fault(71, "a stored value that would run code when read", "nothing is pickled, and no stored name is imported"),
        Fault(72, "a stored answer that this version cannot read", "a typed error; the work is never run again for it"),
    ),
    "Clients": (
        Fault(73, "one key for two requests", "the second is refused: `KeyReused`, over HTTP 422"),
        Fault(74, "a tenant guesses another one's key", "they do not meet: the scope is part of a key's identity"),
        Fault(75, "a flood of new keys", "each scope has its quota"),
        Fault(76, "a client that sends slowly", "nothing is claimed before the body is there"),
        Fault(77, "one key many times at once", "one runs; the others are told so, or wait for its result"),
    ),
    "Retention": (
        Fault(
            78,
            "a retry after the window",
            'new work, or refused with `on_expired="refuse"` as long as the key is remembered',
            documented="how-to/windows-and-key-memory.md#after-the-window",
        ),
        Fault(79, "a sweep meets what is running", "the removal's own condition spares it"),
        Fault(80, "very many records are to be removed", "small batches that pass over what is locked"),
        Fault(81, "a sweeper dies", "the next one goes on; nothing is lost"),
    ),
    "Operations": (
        Fault(82, "a migration under traffic", "new columns first, removals later: claims go on meanwhile"),
        Fault(83, "two versions at once", "each reads and fences what the other has written"),
        Fault(84, "the disk is full", "refused before the effect"),
        Fault(
            85,
            "a loop of crashes",
            "leased: every attempt is counted before its effect; a transactional attempt leaves nothing, by design",
        ),
        Fault(86, "SIGTERM meets a relay", "it finishes its batch or leaves it whole"),
        Fault(87, "a process forks", "the child opens connections and heartbeats of its own"),
        Fault(88, "many threads", "no two share a connection"),
        Fault(89, "cancellation, at every await", "the record is in a valid state, and no key is left locked"),
        Fault(
            90,
            "a backup is restored",
            "what was recorded since is unknown to the store, and leased work since then runs again on a retry, "
            "with a higher token; nothing warns of it yet",
            documented="explanation/when-code-can-still-run-twice.md#by-store",
        ),
    ),
}

FAULTS: dict[int, Fault] = {fault.row: fault for group in CATALOGUE.values() for fault in group}
