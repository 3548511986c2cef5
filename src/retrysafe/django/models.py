"""The table of records as Django knows it, so that ``flush`` and TransactionTestCase empty it like any other.

The table itself is made by our own SQL, and only retrysafe writes records.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class Record(models.Model):
    """One key's record. Look, don't write: the states change under conditions that the ORM does not know."""

    key_hash: Any = models.BinaryField(primary_key=True)
    boundary: Any = models.TextField()
    scope: Any = models.TextField()
    operation: Any = models.TextField()
    fingerprint: Any = models.BinaryField()
    state: Any = models.TextField()
    attempt: Any = models.TextField()
    token: Any = models.BigIntegerField()
    attempts: Any = models.IntegerField()
    effects: Any = models.TextField()
    lease_until: Any = models.BigIntegerField()
    created: Any = models.BigIntegerField()
    updated: Any = models.BigIntegerField()
    expires: Any = models.BigIntegerField()
    forget: Any = models.BigIntegerField()
    version: Any = models.BigIntegerField()
    result: Any = models.BinaryField(null=True)
    media_type: Any = models.TextField(null=True)
    codec_version: Any = models.IntegerField(null=True)
    quota: Any = models.BinaryField(null=True)

    class Meta:
        db_table = "retrysafe_records"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.boundary}/{self.operation} {bytes(self.key_hash).hex()[:12]} {self.state}"
