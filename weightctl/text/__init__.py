"""Sizes, patterns of names, and wording: what people type and read."""
