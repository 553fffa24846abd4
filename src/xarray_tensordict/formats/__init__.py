"""One folder for each format that is read and written, and the registry that chooses one."""
