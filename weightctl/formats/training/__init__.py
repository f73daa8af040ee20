"""Checkpoints of distributed training, whose tensors are in the files of several ranks."""
