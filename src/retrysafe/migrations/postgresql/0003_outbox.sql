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
