"""Edits of checkpoints in place: metadata, names and dropped tensors, without moving data."""
