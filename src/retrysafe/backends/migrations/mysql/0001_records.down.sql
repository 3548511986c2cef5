DROP TABLE IF EXISTS retrysafe_gates;
DROP TABLE IF EXISTS retrysafe_records;
DROP TABLE IF EXISTS retrysafe_schema;
