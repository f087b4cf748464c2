"""Models of the fair lock and of RedLock, small enough to be searched to the end. README.md says what is what."""
