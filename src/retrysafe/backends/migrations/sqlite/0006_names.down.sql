DROP INDEX retrysafe_records_tombstone;
DROP INDEX retrysafe_outbox_attempts_bucket;
DROP INDEX retrysafe_outbox_attempts_until;
DROP INDEX retrysafe_inbox_attempts_updated;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN last_seen_at TO seen;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN started_at TO since;
ALTER TABLE retrysafe_outbox_paused RENAME COLUMN paused_at TO since;
ALTER TABLE retrysafe_inbox_dead RENAME COLUMN dead_at TO died;
ALTER TABLE retrysafe_outbox_dead RENAME COLUMN dead_at TO died;
ALTER TABLE retrysafe_records RENAME COLUMN tombstone_until TO forget;
ALTER TABLE retrysafe_outbox_attempts RENAME TO retrysafe_outbox_troubles;
ALTER TABLE retrysafe_inbox_attempts RENAME TO retrysafe_inbox_troubles;
CREATE INDEX retrysafe_records_forget ON retrysafe_records (forget)
    WHERE state IN ('completed', 'failed', 'released');
CREATE INDEX retrysafe_outbox_troubles_bucket ON retrysafe_outbox_troubles (bucket, lane);
CREATE INDEX retrysafe_outbox_troubles_until ON retrysafe_outbox_troubles (bucket, not_before);
CREATE INDEX retrysafe_inbox_troubles_updated ON retrysafe_inbox_troubles (updated);
