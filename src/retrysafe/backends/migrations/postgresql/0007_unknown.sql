-- Unknown records, the oldest first: an operator finds them without a look at the others.
CREATE INDEX IF NOT EXISTS retrysafe_records_unknown ON retrysafe_records (updated, key_hash)
    WHERE state = 'unknown';
