"""The modules of the model families."""
