"""Steps that compute tensors from others, one byte range at a time; each module has one kind."""
