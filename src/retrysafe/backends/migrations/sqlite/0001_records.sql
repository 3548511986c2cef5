-- Instants are microseconds since the Unix epoch.
CREATE TABLE retrysafe_schema (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE retrysafe_records (
    key_hash BLOB PRIMARY KEY,
    boundary TEXT NOT NULL,
    scope TEXT NOT NULL,
    operation TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'completed', 'failed', 'unknown', 'released')),
    attempt TEXT NOT NULL,
    token INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    effects TEXT NOT NULL CHECK (effects IN ('transactional', 'keyed', 'external')),
    lease_until INTEGER NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    forget INTEGER NOT NULL,
    version INTEGER NOT NULL,
    result BLOB,
    media_type TEXT,
    codec_version INTEGER
) WITHOUT ROWID;
CREATE INDEX retrysafe_records_forget ON retrysafe_records (forget)
    WHERE state IN ('completed', 'failed', 'released');
