"""Plans the sharding of a checkpoint among ranks; only tensors that define shapes are read."""
