"""A kind of lock that a MultiLock takes and releases by its own scripts, as it does locks of several servers."""

from django_rlock import FencedLock
from django_rlock.locks.plain import Fenced


class Apart(Fenced):
    joins = ""


class ApartLock(FencedLock):
    __slots__ = ()

    _kind = Apart()
