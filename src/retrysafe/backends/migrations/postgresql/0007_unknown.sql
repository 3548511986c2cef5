-- Unknown records, the oldest first: an operator finds them without a look at the others.
CREATE INDEX IF NOT EXISTS retrysafe_records_unknown ON retrysafe_records (updated, key_hash)
    WHERE state = 'unknown';
-- Dead letters of consumers, the oldest first.
CREATE INDEX IF NOT EXISTS retrysafe_inbox_dead_at ON retrysafe_inbox_dead (dead_at, key_hash);
