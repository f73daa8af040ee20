"""Statistics, comparisons and scans of checkpoints, and what of a checkpoint is listed."""
