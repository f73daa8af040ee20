"""What models call their tensors, and what of that decides how they are stored."""
