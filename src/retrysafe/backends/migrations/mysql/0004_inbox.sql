-- Messages that could not be handled at once: attempts that were begun, and those that came to an end.
CREATE TABLE IF NOT EXISTS retrysafe_inbox_troubles (
    key_hash BINARY(32) PRIMARY KEY,
    consumer VARCHAR(255) NOT NULL,
    started INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    error TEXT NOT NULL,
    updated BIGINT NOT NULL,
    INDEX retrysafe_inbox_troubles_updated (updated)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
-- Dead letters: messages that were given up, until a person has them handled again (redrive: when that was asked).
CREATE TABLE IF NOT EXISTS retrysafe_inbox_dead (
    key_hash BINARY(32) PRIMARY KEY,
    record_key BINARY(32) NOT NULL,
    boundary VARCHAR(255) NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    message_id TEXT NOT NULL,
    topic VARCHAR(255) NOT NULL,
    message_key TEXT,
    message_type TEXT NOT NULL,
    source TEXT NOT NULL,
    sequence BIGINT,
    headers TEXT NOT NULL,
    payload LONGBLOB NOT NULL,
    media_type VARCHAR(255) NOT NULL,
    started INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    error TEXT NOT NULL,
    died BIGINT NOT NULL,
    redrive BIGINT,
    INDEX retrysafe_inbox_dead_redrive (redrive)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
-- The last sequence that was applied to an entity, by each consumer that asks.
CREATE TABLE IF NOT EXISTS retrysafe_inbox_sequences (
    key_hash BINARY(32) PRIMARY KEY,
    boundary VARCHAR(255) NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    entity VARCHAR(255) NOT NULL,
    sequence BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    INDEX retrysafe_inbox_sequences_updated (updated)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
