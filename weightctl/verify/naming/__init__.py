"""The tensors of a checkpoint against those that its config asks for."""
