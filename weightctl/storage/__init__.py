"""Files that are mapped and read by ranges."""
