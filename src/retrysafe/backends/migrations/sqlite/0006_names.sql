-- The names of version 0.1 give way to the field's terms. SQLite renames no index: they are made anew.
DROP INDEX retrysafe_records_forget;
DROP INDEX retrysafe_outbox_troubles_bucket;
DROP INDEX retrysafe_outbox_troubles_until;
DROP INDEX retrysafe_inbox_troubles_updated;
ALTER TABLE retrysafe_outbox_troubles RENAME TO retrysafe_outbox_attempts;
ALTER TABLE retrysafe_inbox_troubles RENAME TO retrysafe_inbox_attempts;
ALTER TABLE retrysafe_records RENAME COLUMN forget TO tombstone_until;
ALTER TABLE retrysafe_outbox_dead RENAME COLUMN died TO dead_at;
ALTER TABLE retrysafe_inbox_dead RENAME COLUMN died TO dead_at;
ALTER TABLE retrysafe_outbox_paused RENAME COLUMN since TO paused_at;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN since TO started_at;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN seen TO last_seen_at;
CREATE INDEX retrysafe_records_tombstone ON retrysafe_records (tombstone_until)
    WHERE state IN ('completed', 'failed', 'released');
CREATE INDEX retrysafe_outbox_attempts_bucket ON retrysafe_outbox_attempts (bucket, lane);
CREATE INDEX retrysafe_outbox_attempts_until ON retrysafe_outbox_attempts (bucket, not_before);
CREATE INDEX retrysafe_inbox_attempts_updated ON retrysafe_inbox_attempts (updated);
