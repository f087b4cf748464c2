"""What every other room needs of this process: its clock, threads and texts. It knows nothing of locks."""
