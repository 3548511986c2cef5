"""Other idempotency layers behind the conformance fixture, each set up as near to the contract as its options allow."""

CANNOT = {
    "store": "its store is in memory, and can't be taken away",
    "elapse": "its clock can't be moved",
}
"""Why features are missing with a store in the process."""
NO_PRINCIPAL = {"principals": "it has no notion of a principal"}
