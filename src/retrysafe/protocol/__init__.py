"""The protocol: pure functions, tables and generators. No clock, no randomness, no input or output, no library."""
