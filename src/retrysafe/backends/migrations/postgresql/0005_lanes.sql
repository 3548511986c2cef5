-- The messages of one lane, where a relay has passed over a part of their bucket; and the lanes whose wait has ended.
CREATE INDEX IF NOT EXISTS retrysafe_outbox_lane ON retrysafe_outbox (bucket, lane, id);
CREATE INDEX IF NOT EXISTS retrysafe_outbox_troubles_until ON retrysafe_outbox_troubles (bucket, not_before);
