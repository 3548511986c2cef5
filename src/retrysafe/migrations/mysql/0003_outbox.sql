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
