"""The project's settings. DJANGO_TEST_ENGINE chooses the database: "memory", "sqlite" or "postgresql"."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql


def database(kind: str, name: str) -> dict[str, Any]:
    """One entry of DATABASES."""
    if kind in ("postgresql", "mysql"):
        if kind == "mysql":
            pymysql.install_as_MySQLdb()
        url = urlsplit(os.environ[f"RETRYSAFE_TEST_{kind.upper()}"])
        return {
            "ENGINE": f"django.db.backends.{kind}",
            "NAME": url.path[1:],
            "USER": url.username or "",
            "PASSWORD": url.password or "",
            "HOST": url.hostname or "",
            "PORT": str(url.port or ""),
            "TEST": {"NAME": f"test_{name}_{os.getpid()}"},
        }
    folder = Path(os.environ.get("DJANGO_TEST_FOLDER") or tempfile.gettempdir())
    test = {} if kind == "memory" else {"NAME": str(folder / f"test_{name}.db")}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / f"{name}.db"), "TEST": test}


KIND = os.environ.get("DJANGO_TEST_ENGINE", "sqlite")
DATABASES = {"default": database(KIND, "default"), "other": database(KIND, "other")}
DATABASES["default"]["ATOMIC_REQUESTS"] = True
DATABASES["default"]["CONN_MAX_AGE"] = 60
DATABASE_ROUTERS = ["tests.django.settings.Router"]
INSTALLED_APPS = ["retrysafe.django", "tests.django.shop"]
ROOT_URLCONF = "tests.django.shop.urls"
SECRET_KEY = "test"
USE_TZ = True
LOGGING_CONFIG = None
ALLOWED_HOSTS = ["testserver"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


class Router:
    """Everything is on every alias, but alias "without" takes no retrysafe."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == "without" and app_label == "retrysafe" else None
