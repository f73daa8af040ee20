"""Layers that carry a state from position to position: convolutions, SSMs and delta nets."""
