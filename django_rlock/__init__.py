"""Distributed locks for Django and Celery, equal to Redisson's in Redis."""
