ALTER TABLE retrysafe_inbox_dead
    MODIFY message_id TEXT NOT NULL,
    MODIFY message_key TEXT,
    MODIFY message_type TEXT NOT NULL,
    MODIFY source TEXT NOT NULL,
    MODIFY headers TEXT NOT NULL;
ALTER TABLE retrysafe_records RENAME INDEX retrysafe_records_tombstone TO retrysafe_records_forget;
ALTER TABLE retrysafe_outbox_attempts RENAME INDEX retrysafe_outbox_attempts_bucket TO retrysafe_outbox_troubles_bucket;
ALTER TABLE retrysafe_outbox_attempts RENAME INDEX retrysafe_outbox_attempts_until TO retrysafe_outbox_troubles_until;
ALTER TABLE retrysafe_inbox_attempts RENAME INDEX retrysafe_inbox_attempts_updated TO retrysafe_inbox_troubles_updated;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN last_seen_at TO seen;
ALTER TABLE retrysafe_outbox_relays RENAME COLUMN started_at TO since;
ALTER TABLE retrysafe_outbox_paused RENAME COLUMN paused_at TO since;
ALTER TABLE retrysafe_inbox_dead RENAME COLUMN dead_at TO died;
ALTER TABLE retrysafe_outbox_dead RENAME COLUMN dead_at TO died;
ALTER TABLE retrysafe_records RENAME COLUMN tombstone_until TO forget;
ALTER TABLE retrysafe_outbox_attempts RENAME TO retrysafe_outbox_troubles;
ALTER TABLE retrysafe_inbox_attempts RENAME TO retrysafe_inbox_troubles;
