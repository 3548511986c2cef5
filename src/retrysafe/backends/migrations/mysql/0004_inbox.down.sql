DROP TABLE retrysafe_inbox_sequences;
DROP TABLE retrysafe_inbox_dead;
DROP TABLE retrysafe_inbox_troubles;
