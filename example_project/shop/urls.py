from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from example_project.shop import lanes, views

urlpatterns = [
    path("", views.index, name="index"),
    path("status.json", views.status, name="status"),
    path("sales/", views.start_sale, name="start-sale"),
    path("accidents/", views.kill_the_holder, name="kill-the-holder"),
    path("reports/", views.ask_for_report, name="ask-for-report"),
]

# The buyers are programs without cookies, so there is no session that a forged request could abuse.
urlpatterns += [
    path(f"buy/{lane}/<slug:sku>/<int:buyer>/", csrf_exempt(require_POST(view)), name=f"buy-{lane}")
    for lane, view in lanes.VIEWS.items()
]
