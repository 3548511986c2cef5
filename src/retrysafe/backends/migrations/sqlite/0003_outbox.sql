-- Messages that leave when the transaction that wrote them has committed. A row is written once and never changed.
CREATE TABLE retrysafe_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    bucket INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    message_key TEXT,
    message_type TEXT NOT NULL,
    source TEXT NOT NULL,
    sequence INTEGER,
    created INTEGER NOT NULL,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    media_type TEXT NOT NULL
);
CREATE INDEX retrysafe_outbox_bucket ON retrysafe_outbox (bucket, id);
-- One relay at a time holds a bucket: for a transaction, by the lock of its row.
CREATE TABLE retrysafe_outbox_buckets (
    bucket INTEGER PRIMARY KEY
);
INSERT INTO retrysafe_outbox_buckets (bucket)
WITH RECURSIVE numbers (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < 63)
SELECT number FROM numbers;
-- What became of messages that did not leave at once: attempts that were begun, and those that came to an end.
CREATE TABLE retrysafe_outbox_troubles (
    id INTEGER PRIMARY KEY,
    bucket INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    started INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    error TEXT NOT NULL
);
CREATE INDEX retrysafe_outbox_troubles_bucket ON retrysafe_outbox_troubles (bucket, lane);
-- Dead letters: messages that were given up.
CREATE TABLE retrysafe_outbox_dead (
    id INTEGER PRIMARY KEY,
    bucket INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    message_key TEXT,
    message_type TEXT NOT NULL,
    source TEXT NOT NULL,
    sequence INTEGER,
    created INTEGER NOT NULL,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    media_type TEXT NOT NULL,
    started INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    error TEXT NOT NULL,
    died INTEGER NOT NULL
);
-- Messages that have left, where they are kept.
CREATE TABLE retrysafe_outbox_published (
    id INTEGER PRIMARY KEY,
    bucket INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    message_key TEXT,
    message_type TEXT NOT NULL,
    source TEXT NOT NULL,
    sequence INTEGER,
    created INTEGER NOT NULL,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    media_type TEXT NOT NULL,
    published INTEGER NOT NULL
);
CREATE INDEX retrysafe_outbox_published_at ON retrysafe_outbox_published (published);
-- Topics of which nothing leaves for the time being.
CREATE TABLE retrysafe_outbox_paused (
    topic TEXT PRIMARY KEY,
    since INTEGER NOT NULL
);
-- Relays that say they are there: who looks after the outbox sees whether anybody empties it.
CREATE TABLE retrysafe_outbox_relays (
    name TEXT PRIMARY KEY,
    hold TEXT NOT NULL,
    since INTEGER NOT NULL,
    seen INTEGER NOT NULL
);
