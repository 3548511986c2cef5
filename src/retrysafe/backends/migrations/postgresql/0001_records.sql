-- Instants are microseconds since the Unix epoch.
CREATE TABLE retrysafe_schema (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE retrysafe_records (
    key_hash bytea PRIMARY KEY,
    boundary text NOT NULL,
    scope text NOT NULL,
    operation text NOT NULL,
    fingerprint bytea NOT NULL,
    state text NOT NULL CHECK (state IN ('running', 'completed', 'failed', 'unknown', 'released')),
    attempt text NOT NULL,
    token bigint NOT NULL,
    attempts integer NOT NULL,
    effects text NOT NULL CHECK (effects IN ('transactional', 'keyed', 'external')),
    lease_until bigint NOT NULL,
    created bigint NOT NULL,
    updated bigint NOT NULL,
    expires bigint NOT NULL,
    forget bigint NOT NULL,
    version bigint NOT NULL,
    result bytea,
    media_type text,
    codec_version integer,
    xact xid8
);
CREATE INDEX retrysafe_records_forget ON retrysafe_records (forget)
    WHERE state IN ('completed', 'failed', 'released');
