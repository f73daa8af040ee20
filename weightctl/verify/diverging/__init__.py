"""Two models, run side by side on the same tokens."""
