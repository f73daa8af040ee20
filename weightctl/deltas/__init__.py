"""Patches: what changed between two checkpoints, and how the second is restored from the first."""
