"""The writer: writes plans as files, parts, directories, pipes, and files for each rank."""
