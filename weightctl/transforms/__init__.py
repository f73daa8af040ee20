"""Functions from plan to plan; they read no tensor."""
