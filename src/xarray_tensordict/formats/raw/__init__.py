"""Arrays whose bytes lie in files as they are in memory, whatever the format."""
