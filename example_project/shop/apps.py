from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "example_project.shop"

    def ready(self) -> None:
        # A process that sends a task needs the app that knows the broker.
        from example_project import celery  # noqa: F401
