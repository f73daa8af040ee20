"""All numbers of a checkpoint, looked at once."""
