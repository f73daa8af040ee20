"""Steps that compute tensors from others, a chunk of bytes at a time; a module for each kind."""
