"""Steps that change tensors on their way, a chunk of bytes at a time; a module for each."""
