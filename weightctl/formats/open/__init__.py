"""Which files a checkpoint consists of."""
