-- Steps inside a claim: what each has done, so that the next attempt goes on behind it.
CREATE TABLE IF NOT EXISTS retrysafe_steps (
    key_hash bytea NOT NULL,
    generation bigint NOT NULL,
    name text NOT NULL,
    idx text NOT NULL,
    state text NOT NULL CHECK (state IN ('started', 'done', 'undone')),
    token bigint NOT NULL,
    place integer NOT NULL,
    undoable integer NOT NULL,
    fingerprint bytea NOT NULL,
    updated bigint NOT NULL,
    kept_until bigint NOT NULL,
    result bytea,
    media_type text,
    codec_version integer,
    PRIMARY KEY (key_hash, generation, name, idx)
);
CREATE INDEX IF NOT EXISTS retrysafe_steps_kept_until ON retrysafe_steps (kept_until);
