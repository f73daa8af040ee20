"""Pairs the tensors of two checkpoints, measures their differences, and finds causes."""
