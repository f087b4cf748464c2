"""The tests' addresses, and those of a theme."""

import os

from django.urls import include, path

from tests.urls import urlpatterns as usual

urlpatterns = [
    *([path("grappelli/", include("grappelli.urls"))] if os.environ["ADMIN_THEME"] == "grappelli" else []),
    *usual,
]
