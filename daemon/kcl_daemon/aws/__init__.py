"""The adapters to AWS: only this package imports botocore."""
