"""Quantization to a budget: the search for types, and the measurement of the result."""
