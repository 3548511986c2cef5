-- The names of version 0.1 give way to the field's terms. No row is rewritten.
ALTER TABLE retrysafe_records RENAME COLUMN forget TO tombstone_until;
ALTER INDEX retrysafe_records_forget RENAME TO retrysafe_records_tombstone;
ALTER TABLE retrysafe_outbox_troubles RENAME TO retrysafe_outbox_attempts;
ALTER INDEX retrysafe_outbox_troubles_bucket RENAME TO retrysafe_outbox_attempts_bucket;
ALTER INDEX retrysafe_outbox_troubles_until RENAME TO retrysafe_outbox_attempts_until;
ALTER TABLE retrysafe_inbox_troubles RENAME TO retrysafe_inbox_attempts;
ALTER INDEX retrysafe_inbox_troubles_updated RENAME TO retrysafe_inbox_attempts_updated;
ALTER TABLE retrysafe_outbox_dead RENAME COLUMN died TO dead_at;
ALTER TABLE retrysafe_inbox_dead RENAME COLUMN died TO dead_at;
ALTER TABLE retrysafe_outbox_paused RENAME COLUMN since TO paused_at;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN since TO started_at;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN seen TO last_seen_at;
