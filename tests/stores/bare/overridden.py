"""Tests that use ``override_locks()``, in a project whose Redis is not there."""

from django.test import SimpleTestCase, TestCase, override_settings

from django_rlock import rlock
from django_rlock.testing import assert_locked, override_locks
from tests.stores.bare.tests import Buying

OTHER = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}


@override_locks()
class OverriddenTests(Buying, TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        with rlock("data"):
            assert_locked("data")


@override_locks()
@override_settings(CACHES=OTHER)
class OtherCacheTests(Buying, SimpleTestCase):
    pass


class WithOtherCacheInATest(SimpleTestCase):
    @override_locks()
    def test_a_test_may_set_caches(self) -> None:
        with self.settings(CACHES=OTHER), rlock("stock:1"):
            assert_locked("stock:1")
