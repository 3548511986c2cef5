"""Sinks for stream engines: ledgers on every database and on Kafka, and the engines themselves (`make engines`)."""
