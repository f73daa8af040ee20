"""Sharded checkpoints: a manifest, and a file for each rank."""
