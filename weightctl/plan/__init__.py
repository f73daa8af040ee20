"""A conversion as data, and the functions from plan to plan; they read no tensor."""
