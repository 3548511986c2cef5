-- Unknown records, the oldest first: an operator finds and counts them without a look at the others. They are few.
CREATE INDEX IF NOT EXISTS retrysafe_records_unknown ON retrysafe_records (updated, key_hash, boundary, operation, scope)
    WHERE state = 'unknown';
-- Dead letters of consumers, the oldest first.
CREATE INDEX IF NOT EXISTS retrysafe_inbox_dead_at ON retrysafe_inbox_dead (dead_at, key_hash);
