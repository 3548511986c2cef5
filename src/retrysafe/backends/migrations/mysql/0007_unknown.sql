-- Dead letters of consumers, the oldest first. Unknown records have no index here: one of some records alone cannot be
-- made, and one of all would cost every write. They are found by looking through the others, some thousands at a time.
-- Made only where it is not there yet: MySQL commits at every statement here, and this can be repeated.
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_inbox_dead' AND index_name = 'retrysafe_inbox_dead_at'),
    'DO 0',
    'ALTER TABLE retrysafe_inbox_dead ADD INDEX retrysafe_inbox_dead_at (dead_at, key_hash)');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
