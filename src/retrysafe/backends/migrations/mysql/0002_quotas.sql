-- Who holds a key, where a quota counts the keys of a scope.
-- MySQL commits at every statement here, and cannot ask for a column that is not there: so that this can be repeated,
-- the statement is made by a question.
SET @retrysafe = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'retrysafe_records' AND column_name = 'quota'),
    'DO 0',
    'ALTER TABLE retrysafe_records ADD COLUMN quota BINARY(16), ADD INDEX retrysafe_records_quota (quota, created)');
PREPARE retrysafe FROM @retrysafe;
EXECUTE retrysafe;
DEALLOCATE PREPARE retrysafe;
