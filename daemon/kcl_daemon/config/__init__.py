"""From the text of a properties file to typed settings."""
