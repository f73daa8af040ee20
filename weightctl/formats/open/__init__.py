"""The files that a checkpoint consists of."""
