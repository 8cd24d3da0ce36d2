"""What `kcl-daemon landing` does: status, verify, compact, expire, and the notes of readers."""
