"""The WSGI application that gunicorn serves."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

# The web server in front of a real site serves its static files; the demo has none.
application = StaticFilesHandler(get_wsgi_application())
