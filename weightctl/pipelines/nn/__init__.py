"""Names of the specified API that belong to `nn`."""
