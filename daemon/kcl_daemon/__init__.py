"""kcl-daemon: consumes Amazon Kinesis Data Streams for programs in any language, without a JVM."""

__version__ = "0.1.0"
