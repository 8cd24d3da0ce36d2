"""What a run consists of, as plain values, and what is drawn for it from chance."""
