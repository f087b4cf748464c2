"""Names that the examples in the pages use without importing them: those of the reader, and usual ones of Django."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import celery
import redis
from celery import Celery
from django.contrib.auth.mixins import LoginRequiredMixin
from django.db import models, transaction
from django.db.models import F
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from ninja import NinjaAPI
from rest_framework.decorators import action, api_view
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet

import django_rlock
from django_rlock.celery import LockedTask

IMPORTED: list[Any] = [
    *(APIView, Celery, F, HttpResponse, LockedTask, ModelViewSet, NinjaAPI, ThreadPoolExecutor, View),
    *(LoginRequiredMixin, action, api_view, method_decorator, uuid4),
]


@contextmanager
def usual() -> Iterator[dict[str, Any]]:
    """The names. What is submitted to ``pool`` has ended afterwards."""
    with ThreadPoolExecutor(1) as pool:
        yield {
            **{name: getattr(django_rlock, name) for name in django_rlock.__all__},
            **{each.__name__: each for each in IMPORTED},
            "INSTALLED_APPS": [],
            "MIDDLEWARE": [],
            "logging": logging,
            "models": models,
            "path": path,
            "pool": pool,
            "redis": redis,
            "shared_task": celery.shared_task,
            "task": lambda function: function,
            "transaction": transaction,
            "write_export": lambda lock: lock.release(),
        }
