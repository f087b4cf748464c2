"""Makes Celery tasks run under locks: options, names of locks, redelivered messages, dying processes.

Users import ``django_rlock.celery``.
"""
