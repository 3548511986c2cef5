-- Who holds a key, where a quota counts the keys of a scope; other records are not in the index.
ALTER TABLE retrysafe_records ADD COLUMN IF NOT EXISTS quota bytea;
CREATE INDEX IF NOT EXISTS retrysafe_records_quota ON retrysafe_records (quota, created) WHERE quota IS NOT NULL;
