"""The admin, and a view that nothing guards."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpResponse
from django.urls import path
from django.views import View

from retrysafe import Boundary

office = Boundary("office", store="default")


class Pay(View):
    """A payment."""

    def post(self, request: Any) -> HttpResponse:
        """Pay."""
        return HttpResponse()


urlpatterns = [path("admin/", admin.site.urls), path("pay", Pay.as_view())]
