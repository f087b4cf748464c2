"""The reports and the history that each process writes about its locks, for the console."""
