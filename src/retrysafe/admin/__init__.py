"""For operators: settle, sweep, archive and describe what a store keeps."""
