"""Kinesis and DynamoDB on loopback, for trying out, developing against and testing; and the demo that uses them."""
