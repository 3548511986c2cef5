-- The names of version 0.1 give way to the field's terms. No row is rewritten.
-- Each step is taken only where it is still due: MySQL commits at every statement here, and this can be repeated.
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_outbox_troubles'),
    'ALTER TABLE retrysafe_outbox_troubles RENAME TO retrysafe_outbox_attempts',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_inbox_troubles'),
    'ALTER TABLE retrysafe_inbox_troubles RENAME TO retrysafe_inbox_attempts',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_records' AND column_name = 'forget'),
    'ALTER TABLE retrysafe_records RENAME COLUMN forget TO tombstone_until',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_outbox_dead' AND column_name = 'died'),
    'ALTER TABLE retrysafe_outbox_dead RENAME COLUMN died TO dead_at',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_inbox_dead' AND column_name = 'died'),
    'ALTER TABLE retrysafe_inbox_dead RENAME COLUMN died TO dead_at',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_outbox_paused' AND column_name = 'since'),
    'ALTER TABLE retrysafe_outbox_paused RENAME COLUMN since TO paused_at',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_outbox_relays' AND column_name = 'since'),
    'ALTER TABLE retrysafe_outbox_relays RENAME COLUMN since TO started_at',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_outbox_relays' AND column_name = 'seen'),
    'ALTER TABLE retrysafe_outbox_relays RENAME COLUMN seen TO last_seen_at',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_records' AND index_name = 'retrysafe_records_forget'),
    'ALTER TABLE retrysafe_records RENAME INDEX retrysafe_records_forget TO retrysafe_records_tombstone',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_outbox_attempts' AND index_name = 'retrysafe_outbox_troubles_bucket'),
    'ALTER TABLE retrysafe_outbox_attempts RENAME INDEX retrysafe_outbox_troubles_bucket TO retrysafe_outbox_attempts_bucket',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_outbox_attempts' AND index_name = 'retrysafe_outbox_troubles_until'),
    'ALTER TABLE retrysafe_outbox_attempts RENAME INDEX retrysafe_outbox_troubles_until TO retrysafe_outbox_attempts_until',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_inbox_attempts' AND index_name = 'retrysafe_inbox_troubles_updated'),
    'ALTER TABLE retrysafe_inbox_attempts RENAME INDEX retrysafe_inbox_troubles_updated TO retrysafe_inbox_attempts_updated',
    'DO 0');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
-- Brokers of others bring attributes of more than 64 KiB, and what carries them must not be undeliverable for ever.
ALTER TABLE retrysafe_inbox_dead
    MODIFY message_id MEDIUMTEXT NOT NULL,
    MODIFY message_key MEDIUMTEXT,
    MODIFY message_type MEDIUMTEXT NOT NULL,
    MODIFY source MEDIUMTEXT NOT NULL,
    MODIFY headers MEDIUMTEXT NOT NULL;
