"""The bodies of views in these tests: they sell something, and tell the test so."""

from django.contrib.auth.models import Group
from django.dispatch import Signal

LOCKED = ["acquire stock:7", "BEGIN", "body", "COMMIT", "release stock:7"]
UNLOCKED = ["BEGIN", "body", "COMMIT"]
ROLLED_BACK = ["acquire stock:7", "BEGIN", "body", "ROLLBACK", "release stock:7"]

told = Signal()


def tell(what: str) -> None:
    """Add to the test's ``events``."""
    told.send(None, what=what)


def sell() -> str:
    tell("body")
    Group.objects.create(name=f"sold {Group.objects.count()}")
    return "sold"


def sold() -> bool:
    return Group.objects.exists()
