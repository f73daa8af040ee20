"""Opening of checkpoints: which files they consist of."""
