"""Runs a checkpoint's model on tokens."""
