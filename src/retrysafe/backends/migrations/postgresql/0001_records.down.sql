DROP TABLE retrysafe_records;
DROP TABLE retrysafe_schema;
