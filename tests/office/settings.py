"""The project's settings: those of tests/django, with the admin and what it needs."""

from __future__ import annotations

import os
from typing import Any

from tests.django.settings import *  # noqa: F403 - a project's settings that begin with another's
from tests.django.settings import database

KIND = os.environ.get("DJANGO_TEST_ENGINE", "sqlite")
DATABASES: dict[str, Any] = {"default": database(KIND, "office") | {"ATOMIC_REQUESTS": True}}
DATABASE_ROUTERS: list[str] = []
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "retrysafe.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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
ROOT_URLCONF = "tests.office.urls"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "/static/"
