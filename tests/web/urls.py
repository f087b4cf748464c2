from django.urls import path

from tests.web.test_views import abuy, buy

urlpatterns = [
    path("buy/<int:pk>/", buy),
    path("abuy/<int:pk>/", abuy),
]
