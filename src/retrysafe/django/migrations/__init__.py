"""One migration per version of the schema, of the same number."""
