"""The adapters to AWS: the only importers of boto3 and botocore."""
