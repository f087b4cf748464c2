"""A project as a user would begin it, which is copied to where only the wheel is installed."""
