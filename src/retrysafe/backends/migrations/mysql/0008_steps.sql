-- Steps inside a claim: what each has done, so that the next attempt goes on behind it.
CREATE TABLE IF NOT EXISTS retrysafe_steps (
    key_hash BINARY(32) NOT NULL,
    generation BIGINT NOT NULL,
    name VARCHAR(255) NOT NULL,
    idx VARCHAR(255) NOT NULL,
    state VARCHAR(16) NOT NULL CHECK (state IN ('started', 'done', 'undone')),
    token BIGINT NOT NULL,
    place INTEGER NOT NULL,
    undoable INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    updated BIGINT NOT NULL,
    kept_until BIGINT NOT NULL,
    result LONGBLOB,
    media_type VARCHAR(255),
    codec_version INTEGER,
    PRIMARY KEY (key_hash, generation, name, idx),
    INDEX retrysafe_steps_kept_until (kept_until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
