"""The goods of the shop."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order; nothing keeps a second one of the same kind out."""

    item = models.TextField()

    def __str__(self) -> str:
        return self.item
