-- Steps inside a claim: what each has done, so that the next attempt goes on behind it.
CREATE TABLE IF NOT EXISTS retrysafe_steps (
    key_hash BLOB NOT NULL,
    generation INTEGER NOT NULL,
    name TEXT NOT NULL,
    idx TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('started', 'done', 'undone')),
    token INTEGER NOT NULL,
    place INTEGER NOT NULL,
    undoable INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    updated INTEGER NOT NULL,
    kept_until INTEGER NOT NULL,
    result BLOB,
    media_type TEXT,
    codec_version INTEGER,
    PRIMARY KEY (key_hash, generation, name, idx)
);
CREATE INDEX IF NOT EXISTS retrysafe_steps_kept_until ON retrysafe_steps (kept_until);
