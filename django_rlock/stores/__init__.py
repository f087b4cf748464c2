"""Places for locks that are not servers of the project."""
