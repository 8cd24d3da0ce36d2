"""HTTP for the record path: signed calls and event streams with far less CPU than the SDK."""
