"""Checkpoints that are cut for several ranks: a manifest, and a file for each rank."""
