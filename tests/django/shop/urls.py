"""One path per view."""

from __future__ import annotations

from django.urls import path

from tests.django.shop import views

urlpatterns = [
    path(view.__name__, view) for view in (views.joined, views.own, views.inside, views.paid, views.paid_inside)
]
