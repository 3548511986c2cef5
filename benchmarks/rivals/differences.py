"""The lesser work of rivals in the same row of a benchmark."""

LESS = {
    "asgi-idempotency-header": (
        "It compares no payload: a key that is used again with another body gets the first answer. It has no lease: "
        "the key of an attempt that died stays in progress. Only JSON is replayed."
    ),
    "idemkit": (
        "A retry with another content type gets the first answer, a response in several chunks is not replayed, and "
        "a lease is not renewed while its handler runs, so that a second one starts."
    ),
    "Powertools": (
        "It has no fence: an attempt that was paused overwrites the result of the one that took over. Payloads are "
        "compared only where that is configured. Outside Lambda, the key of an attempt that died is held until its "
        "record expires."
    ),
    "DBOS": (
        "It compares no payload: a workflow ID that is used again with other arguments gets the first result. What "
        "died is resumed by a recovery, not by the next caller."
    ),
    "faststream-outbox": (
        "It keeps no order within a key. Its time ends with its last handler, ours when everything is confirmed and "
        "removed."
    ),
}
