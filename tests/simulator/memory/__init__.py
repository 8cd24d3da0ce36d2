"""The ports `Table` and `Kinesis` in memory. They never wait, so that whoever calls them decides how long calls take."""
