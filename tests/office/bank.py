"""A module of the project with boundaries, to be described: it imports a model, so Django must be set up first."""

from __future__ import annotations

from django.contrib.auth.models import User

from retrysafe import Boundary

transfers = Boundary("transfers", store="default", effects="external")


@transfers.once(key="reference", operation="transfer")
def transfer(reference: str, user: str) -> str:
    return str(User.objects.get(username=user))
