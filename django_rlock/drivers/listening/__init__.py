"""How waiters are woken: one listening connection to each server, read by one thread and shared by all waiters."""
