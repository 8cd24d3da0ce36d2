"""DynamoDB Streams: the changes of tables, in shards that roll, split, end and are trimmed."""
