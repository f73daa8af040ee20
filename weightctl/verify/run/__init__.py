"""A model of a checkpoint, run on tokens."""
