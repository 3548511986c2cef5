ALTER TABLE retrysafe_records DROP INDEX retrysafe_records_quota, DROP COLUMN quota;
