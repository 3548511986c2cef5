"""Claims: from asking for a key to the stored outcome."""
