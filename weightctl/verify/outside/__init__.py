"""What other programs make of the files of a checkpoint."""
