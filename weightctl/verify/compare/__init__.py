"""The tensors of two checkpoints, and how far they are from each other."""
