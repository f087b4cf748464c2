"""A plain Django project with Redis as cache, as Celery's broker and for its locks.

``make demo`` sets the SHOP_ variables; without them the project uses a Redis on its usual port. SHOP_POSTGRES is yours
to set: the name of a PostgreSQL database, to be used instead of SQLite.
"""

import os
from pathlib import Path

from django.core.management.utils import get_random_secret_key

FOLDER = Path(__file__).resolve().parent
REDIS_URL = os.environ.get("SHOP_REDIS_URL", "redis://127.0.0.1:6379/0")

SHOP_URL = os.environ.get("SHOP_URL", "http://127.0.0.1:8000")
"""The address at which the buyers reach the site."""

LOCKS = (
    {"STORE": "embedded", "FOLDER": os.environ["SHOP_LOCKS"]} if "SHOP_LOCKS" in os.environ else {"CACHE": "default"}
)
"""Where the locks are: with ``make demo``, on a server that the site and the worker start and share."""

LEASE = int(os.environ.get("SHOP_LEASE", "30"))
"""How long a lock outlives its holder, in seconds; the default of django_rlock."""

# With different keys in each process, users would be logged out when another process responds: production sets one.
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_rlock",
    "example_project.shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_rlock.middleware.LockMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS_URL}}
# A hundred buyers wait for one lock, and none should be refused. For most views the default of 3 s is better.
RLOCK = {"default": {**LOCKS, "VIEW_WAIT_TIME": 30, "WATCHDOG_TIMEOUT": LEASE}}

# Many buyers write at once. SQLite allows one write at a time: readers continue meanwhile (WAL), writers take turns
# (timeout), and a transaction that will write waits for its turn when it begins (IMMEDIATE), not in the middle.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", FOLDER / "shop.sqlite3"),
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            "timeout": 60,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}

# In PostgreSQL the shop keeps to a schema of its own. Host, port, user and password are those of PGHOST and so on. The
# pool limits the connections, of which every buyer who waits for a row keeps one.
SCHEMA = os.environ.get("SHOP_SCHEMA", "shop")
if POSTGRES := os.environ.get("SHOP_POSTGRES"):
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": POSTGRES,
            "OPTIONS": {
                "options": f"-c search_path={SCHEMA}",
                "pool": {"min_size": 1, "max_size": 20, "timeout": 60},
            },
        }
    }

# Celery writes the URL of a unix socket in its own way.
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
