"""DynamoDB: the store, its table and its client."""
