"""Plans for sharding a checkpoint across ranks; planning reads no tensor data except shapes."""
