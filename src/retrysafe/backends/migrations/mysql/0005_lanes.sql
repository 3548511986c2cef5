-- The messages of one lane, where a relay has passed over a part of their bucket; and the lanes whose wait has ended.
-- Made only where they are not there yet: MySQL commits at every statement here, and this can be repeated.
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_outbox' AND index_name = 'retrysafe_outbox_lane'),
    'DO 0',
    'ALTER TABLE retrysafe_outbox ADD INDEX retrysafe_outbox_lane (bucket, lane, id)');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_outbox_troubles' AND index_name = 'retrysafe_outbox_troubles_until'),
    'DO 0',
    'ALTER TABLE retrysafe_outbox_troubles ADD INDEX retrysafe_outbox_troubles_until (bucket, not_before)');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
