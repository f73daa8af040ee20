"""Weights that are stored in several tensors: packed numbers, scales, zero points."""
