-- Who holds a key, where a quota counts the keys of a scope; other records are not in the index.
ALTER TABLE retrysafe_records ADD COLUMN quota BLOB;
CREATE INDEX retrysafe_records_quota ON retrysafe_records (quota, created) WHERE quota IS NOT NULL;
