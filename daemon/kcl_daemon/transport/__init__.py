"""HTTP for the record path, with far less CPU than the SDK."""
