-- Messages that leave when the transaction that wrote them has committed. A row is written once and never changed.
CREATE TABLE IF NOT EXISTS retrysafe_outbox (
    id BIGINT AUTO_INCREMENT PRIMARY KEY,
    bucket SMALLINT NOT NULL,
    lane BIGINT NOT NULL,
    message_id VARCHAR(64) NOT NULL,
    topic VARCHAR(255) NOT NULL,
    message_key VARCHAR(255),
    message_type VARCHAR(255) NOT NULL,
    source VARCHAR(255) NOT NULL,
    sequence BIGINT,
    created BIGINT NOT NULL,
    headers TEXT NOT NULL,
    payload LONGBLOB NOT NULL,
    media_type VARCHAR(255) NOT NULL,
    INDEX retrysafe_outbox_bucket (bucket, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
-- One relay at a time holds a bucket: for a transaction, by the lock of its row.
CREATE TABLE IF NOT EXISTS retrysafe_outbox_buckets (
    bucket SMALLINT PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
INSERT IGNORE INTO retrysafe_outbox_buckets (bucket)
SELECT a.d + 8 * b.d FROM
    (SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
     UNION SELECT 7) AS a,
    (SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
     UNION SELECT 7) AS b;
-- What became of messages that did not leave at once: attempts that were begun, and those that came to an end.
CREATE TABLE IF NOT EXISTS retrysafe_outbox_troubles (
    id BIGINT PRIMARY KEY,
    bucket SMALLINT NOT NULL,
    lane BIGINT NOT NULL,
    started INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    not_before BIGINT NOT NULL,
    error TEXT NOT NULL,
    INDEX retrysafe_outbox_troubles_bucket (bucket, lane)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
-- Dead letters: messages that were given up.
CREATE TABLE IF NOT EXISTS retrysafe_outbox_dead (
    id BIGINT PRIMARY KEY,
    bucket SMALLINT NOT NULL,
    lane BIGINT NOT NULL,
    message_id VARCHAR(64) NOT NULL,
    topic VARCHAR(255) NOT NULL,
    message_key VARCHAR(255),
    message_type VARCHAR(255) NOT NULL,
    source VARCHAR(255) NOT NULL,
    sequence BIGINT,
    created BIGINT NOT NULL,
    headers TEXT NOT NULL,
    payload LONGBLOB NOT NULL,
    media_type VARCHAR(255) NOT NULL,
    started INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    error TEXT NOT NULL,
    died BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
-- Messages that have left, where they are kept.
CREATE TABLE IF NOT EXISTS retrysafe_outbox_published (
    id BIGINT PRIMARY KEY,
    bucket SMALLINT NOT NULL,
    lane BIGINT NOT NULL,
    message_id VARCHAR(64) NOT NULL,
    topic VARCHAR(255) NOT NULL,
    message_key VARCHAR(255),
    message_type VARCHAR(255) NOT NULL,
    source VARCHAR(255) NOT NULL,
    sequence BIGINT,
    created BIGINT NOT NULL,
    headers TEXT NOT NULL,
    payload LONGBLOB NOT NULL,
    media_type VARCHAR(255) NOT NULL,
    published BIGINT NOT NULL,
    INDEX retrysafe_outbox_published_at (published)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
-- Topics of which nothing leaves for the time being.
CREATE TABLE IF NOT EXISTS retrysafe_outbox_paused (
    topic VARCHAR(255) PRIMARY KEY,
    since BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
-- Relays that say they are there: who looks after the outbox sees whether anybody empties it.
CREATE TABLE IF NOT EXISTS retrysafe_outbox_relays (
    name VARCHAR(255) PRIMARY KEY,
    hold VARCHAR(255) NOT NULL,
    since BIGINT NOT NULL,
    seen BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */;
