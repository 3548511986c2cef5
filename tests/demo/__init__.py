"""The demo: its parts alone, and the whole of it."""
