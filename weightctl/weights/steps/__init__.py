"""What can be done to tensors on their way, a run of their bytes at a time; a module for each."""
