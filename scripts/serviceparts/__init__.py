"""The servers that `scripts/services` installs, starts and stops."""
