"""Sizes, patterns of names, and wording: text that users type and read."""
