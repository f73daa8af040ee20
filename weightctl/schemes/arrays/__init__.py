"""The array code of schemes, which uses NumPy: decoding, rounding and packing of weights."""
