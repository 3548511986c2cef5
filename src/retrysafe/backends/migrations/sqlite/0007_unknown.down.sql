DROP INDEX retrysafe_inbox_dead_at;
DROP INDEX retrysafe_records_unknown;
