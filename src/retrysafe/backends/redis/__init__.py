"""Redis and Valkey: the store, its clients and its URLs."""
