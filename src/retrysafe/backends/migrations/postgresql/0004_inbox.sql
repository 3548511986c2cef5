-- Messages that could not be handled at once: attempts that were begun, and those that came to an end.
CREATE TABLE retrysafe_inbox_troubles (
    key_hash bytea PRIMARY KEY,
    consumer text NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
    error text NOT NULL,
    updated bigint NOT NULL
);
CREATE INDEX retrysafe_inbox_troubles_updated ON retrysafe_inbox_troubles (updated);
-- Dead letters: messages that were given up, until a person has them handled again (redrive: when that was asked).
CREATE TABLE retrysafe_inbox_dead (
    key_hash bytea PRIMARY KEY,
    record_key bytea NOT NULL,
    boundary text NOT NULL,
    consumer text NOT NULL,
    message_id text NOT NULL,
    topic text NOT NULL,
    message_key text,
    message_type text NOT NULL,
    source text NOT NULL,
    sequence bigint,
    headers text NOT NULL,
    payload bytea NOT NULL,
    media_type text NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
    error text NOT NULL,
    died bigint NOT NULL,
    redrive bigint
);
CREATE INDEX retrysafe_inbox_dead_redrive ON retrysafe_inbox_dead (redrive) WHERE redrive IS NOT NULL;
-- The last sequence that was applied to an entity, by each consumer that asks.
CREATE TABLE retrysafe_inbox_sequences (
    key_hash bytea PRIMARY KEY,
    boundary text NOT NULL,
    consumer text NOT NULL,
    entity text NOT NULL,
    sequence bigint NOT NULL,
    updated bigint NOT NULL
);
CREATE INDEX retrysafe_inbox_sequences_updated ON retrysafe_inbox_sequences (updated);
