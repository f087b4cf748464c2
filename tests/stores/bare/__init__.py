"""A project that sets no CACHES, as a new one: its cache is Django's LocMemCache."""
