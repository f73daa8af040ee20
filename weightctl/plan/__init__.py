"""Conversions as data (plans), and functions from plan to plan, which read no tensors."""
