DROP INDEX retrysafe_records_quota;
ALTER TABLE retrysafe_records DROP COLUMN quota;
