-- Messages that could not be handled at once: attempts that were begun, and those that came to an end.
CREATE TABLE retrysafe_inbox_troubles (
    key_hash BLOB PRIMARY KEY,
    consumer TEXT NOT NULL,
    started INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    error TEXT NOT NULL,
    updated INTEGER NOT NULL
);
CREATE INDEX retrysafe_inbox_troubles_updated ON retrysafe_inbox_troubles (updated);
-- Dead letters: messages that were given up, until a person has them handled again (redrive: when that was asked).
CREATE TABLE retrysafe_inbox_dead (
    key_hash BLOB PRIMARY KEY,
    record_key BLOB NOT NULL,
    boundary TEXT NOT NULL,
    consumer TEXT NOT NULL,
    message_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    message_key TEXT,
    message_type TEXT NOT NULL,
    source TEXT NOT NULL,
    sequence INTEGER,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    media_type TEXT NOT NULL,
    started INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    error TEXT NOT NULL,
    died INTEGER NOT NULL,
    redrive INTEGER
);
CREATE INDEX retrysafe_inbox_dead_redrive ON retrysafe_inbox_dead (redrive) WHERE redrive IS NOT NULL;
-- The last sequence that was applied to an entity, by each consumer that asks.
CREATE TABLE retrysafe_inbox_sequences (
    key_hash BLOB PRIMARY KEY,
    boundary TEXT NOT NULL,
    consumer TEXT NOT NULL,
    entity TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    updated INTEGER NOT NULL
);
CREATE INDEX retrysafe_inbox_sequences_updated ON retrysafe_inbox_sequences (updated);
