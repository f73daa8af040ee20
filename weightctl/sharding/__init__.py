"""Plans of how a checkpoint is cut for several ranks; no tensor is read for them."""
