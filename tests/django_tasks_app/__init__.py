"""Tasks of ``django.tasks`` under locks; settings.py has them wait in a database for ``manage.py db_worker``."""
