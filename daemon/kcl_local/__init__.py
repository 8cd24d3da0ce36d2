"""Local Kinesis, DynamoDB, STS and CloudWatch endpoints for development and tests, and the demo."""
