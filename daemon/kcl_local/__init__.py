"""Kinesis, DynamoDB, STS and CloudWatch on loopback, for trying out, developing against and testing; and the demo that uses them."""
