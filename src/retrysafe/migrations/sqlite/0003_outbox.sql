-- Messages that leave when the transaction that wrote them has committed. A row is written once and never changed.
CREATE TABLE retrysafe_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    bucket INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    message_key TEXT,
    message_type TEXT NOT NULL,
    source TEXT NOT NULL,
    sequence INTEGER,
    created INTEGER NOT NULL,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    media_type TEXT NOT NULL
);
CREATE INDEX retrysafe_outbox_bucket ON retrysafe_outbox (bucket, id);
