"""Records in the memory of one process."""
