"""What `kcl-daemon landing` does with a landing log: status, verify, compact, expire, and the notes of readers."""
