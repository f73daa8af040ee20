"""Proof that a checkpoint is an honest quantization of another one, tensor by tensor."""
