"""The checks of `retrysafe doctor` for SQL databases, one module per dialect."""
