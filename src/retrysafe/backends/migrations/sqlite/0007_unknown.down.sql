DROP INDEX retrysafe_records_unknown;
