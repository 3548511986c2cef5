-- Messages that leave when the transaction that wrote them has committed. A row is written once and never changed; its
-- id is taken when it is written, so that it is in order with what the same writer has locked.
CREATE TABLE retrysafe_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    bucket smallint NOT NULL,
    lane bigint NOT NULL,
    message_id text NOT NULL,
    topic text NOT NULL,
    message_key text,
    message_type text NOT NULL,
    source text NOT NULL,
    sequence bigint,
    created bigint NOT NULL,
    headers text NOT NULL,
    payload bytea NOT NULL,
    media_type text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX retrysafe_outbox_bucket ON retrysafe_outbox (bucket, id);
-- One relay at a time holds a bucket: for a transaction, by the lock of its row.
CREATE TABLE retrysafe_outbox_buckets (
    bucket smallint PRIMARY KEY
);
INSERT INTO retrysafe_outbox_buckets (bucket)
SELECT number FROM generate_series(0, 63) AS number;
-- What became of messages that did not leave at once: attempts that were begun, and those that came to an end.
CREATE TABLE retrysafe_outbox_troubles (
    id bigint PRIMARY KEY,
    bucket smallint NOT NULL,
    lane bigint NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
    not_before bigint NOT NULL,
    error text NOT NULL
);
CREATE INDEX retrysafe_outbox_troubles_bucket ON retrysafe_outbox_troubles (bucket, lane);
-- Dead letters: messages that were given up.
CREATE TABLE retrysafe_outbox_dead (
    id bigint PRIMARY KEY,
    bucket smallint NOT NULL,
    lane bigint NOT NULL,
    message_id text NOT NULL,
    topic text NOT NULL,
    message_key text,
    message_type text NOT NULL,
    source text NOT NULL,
    sequence bigint,
    created bigint NOT NULL,
    headers text NOT NULL,
    payload bytea NOT NULL,
    media_type text NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
    error text NOT NULL,
    died bigint NOT NULL
);
-- Messages that have left, where they are kept.
CREATE TABLE retrysafe_outbox_published (
    id bigint PRIMARY KEY,
    bucket smallint NOT NULL,
    lane bigint NOT NULL,
    message_id text NOT NULL,
    topic text NOT NULL,
    message_key text,
    message_type text NOT NULL,
    source text NOT NULL,
    sequence bigint,
    created bigint NOT NULL,
    headers text NOT NULL,
    payload bytea NOT NULL,
    media_type text NOT NULL,
    published bigint NOT NULL
);
CREATE INDEX retrysafe_outbox_published_at ON retrysafe_outbox_published (published);
-- Topics of which nothing leaves for the time being.
CREATE TABLE retrysafe_outbox_paused (
    topic text PRIMARY KEY,
    since bigint NOT NULL
);
-- Relays that say they are there: who looks after the outbox sees whether anybody empties it.
CREATE TABLE retrysafe_outbox_relays (
    name text PRIMARY KEY,
    hold text NOT NULL,
    since bigint NOT NULL,
    seen bigint NOT NULL
);
