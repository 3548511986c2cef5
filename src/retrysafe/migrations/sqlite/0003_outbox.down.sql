DROP TABLE retrysafe_outbox;
