"""The writer: plans become files, parts of a set, directories, pipes, and files for each rank."""
