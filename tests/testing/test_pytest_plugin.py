"""The fixtures, as pytest finds them in a project of its own."""

import subprocess
import sys

import pytest

from tests.forms import long

pytest.importorskip("fakeredis", reason="lupa, which fakeredis needs, has no wheels for this Python")

SETTINGS = """
SECRET_KEY = "test"
INSTALLED_APPS = ["django_rlock"]
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""
TESTS = """
import asyncio
import pytest
from django.db import transaction
from django.test import TestCase
from django_rlock import rlock
from django_rlock.testing import override_locks

def sell():
    with transaction.atomic():
        rlock("stock:1", until_commit=True).acquire()

@pytest.mark.django_db
def test_until_commit(rlocks):
    sell()

@pytest.mark.django_db(transaction=True)
def test_until_a_real_commit(rlocks):
    sell()
    assert not rlock("stock:1").locked()

@override_locks()
class TestSale(TestCase):
    def test_until_commit(self):
        sell()

def test_held(held_lock, rlocks):
    held_lock("stock:1")
    rlocks.assert_locked("stock:1")
    assert not rlock("stock:1").acquire(blocking=False)

def test_held_in_async_code(held_lock, rlocks):
    async def body():
        held_lock("stock:1")
        await rlocks.aassert_locked("stock:1")
        assert not await rlock("stock:1").aacquire(blocking=False)

    asyncio.run(body())

def test_nothing_is_left_of_it(rlocks):
    rlocks.assert_not_locked("stock:1")

def test_leaves_one(rlocks):
    rlock("stock:2").acquire()
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "project_settings.py").write_text(SETTINGS)
    (tmp_path / "test_stock.py").write_text(TESTS)
    return tmp_path


@pytest.mark.parametrize("options", [[], *long(["-n", "2"])], ids=["one process", "xdist"])
def test_in_a_project(project, options):
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:randomly", "--ds", "project_settings", *options]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert "7 passed, 1 error" in run.stdout, run.stdout + run.stderr
    assert "has ended, but" not in run.stdout, run.stdout
    assert "Locks are left: stock:2 by" in run.stdout
