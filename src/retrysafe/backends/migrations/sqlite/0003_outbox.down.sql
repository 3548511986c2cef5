DROP TABLE retrysafe_outbox_relays;
DROP TABLE retrysafe_outbox_paused;
DROP TABLE retrysafe_outbox_published;
DROP TABLE retrysafe_outbox_dead;
DROP TABLE retrysafe_outbox_troubles;
DROP TABLE retrysafe_outbox_buckets;
DROP TABLE retrysafe_outbox;
