"""Arrays whose bytes lie in files as they are in memory, in any format."""
