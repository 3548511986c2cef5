-- The names of version 0.1 give way to the field's terms. SQLite renames no index: they are made anew.
-- The records are written anew: for IN with three values or more, in a CHECK or in the condition of an index, SQLite
-- builds a table of these values for every statement, and a table WITHOUT ROWID is slow where it is large.
CREATE TABLE retrysafe_records_rewritten (
    key_hash BLOB NOT NULL PRIMARY KEY,
    boundary TEXT NOT NULL,
    scope TEXT NOT NULL,
    operation TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    state TEXT NOT NULL CHECK (
        state = 'running' OR state = 'completed' OR state = 'failed' OR state = 'unknown' OR state = 'released'
    ),
    attempt TEXT NOT NULL,
    token INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    effects TEXT NOT NULL CHECK (effects = 'transactional' OR effects = 'keyed' OR effects = 'external'),
    lease_until INTEGER NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    tombstone_until INTEGER NOT NULL,
    version INTEGER NOT NULL,
    result BLOB,
    media_type TEXT,
    codec_version INTEGER,
    quota BLOB
);
INSERT INTO retrysafe_records_rewritten SELECT key_hash, boundary, scope, operation, fingerprint, state, attempt, token,
    attempts, effects, lease_until, created, updated, expires, forget, version, result, media_type, codec_version, quota
    FROM retrysafe_records;
DROP TABLE retrysafe_records;
ALTER TABLE retrysafe_records_rewritten RENAME TO retrysafe_records;
CREATE INDEX retrysafe_records_quota ON retrysafe_records (quota, created) WHERE quota IS NOT NULL;
DROP INDEX retrysafe_outbox_troubles_bucket;
DROP INDEX retrysafe_outbox_troubles_until;
DROP INDEX retrysafe_inbox_troubles_updated;
ALTER TABLE retrysafe_outbox_troubles RENAME TO retrysafe_outbox_attempts;
ALTER TABLE retrysafe_inbox_troubles RENAME TO retrysafe_inbox_attempts;
ALTER TABLE retrysafe_outbox_dead RENAME COLUMN died TO dead_at;
ALTER TABLE retrysafe_inbox_dead RENAME COLUMN died TO dead_at;
ALTER TABLE retrysafe_outbox_paused RENAME COLUMN since TO paused_at;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN since TO started_at;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN seen TO last_seen_at;
CREATE INDEX retrysafe_records_tombstone ON retrysafe_records (tombstone_until)
    WHERE state = 'completed' OR state = 'failed' OR state = 'released';
CREATE INDEX retrysafe_outbox_attempts_bucket ON retrysafe_outbox_attempts (bucket, lane);
CREATE INDEX retrysafe_outbox_attempts_until ON retrysafe_outbox_attempts (bucket, not_before);
CREATE INDEX retrysafe_inbox_attempts_updated ON retrysafe_inbox_attempts (updated);
