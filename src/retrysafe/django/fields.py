"""The field of a key's hash, which people and URLs have in hexadecimal."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import models


class Digits(bytes):
    """The hash of a key; as text, its digits."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.hex()


class KeyHash(models.BinaryField):
    """A binary column whose values may be given as hex digits, so that the admin can name records.

    To migrations it is the binary field that it always was.
    """

    def deconstruct(self) -> Any:
        """Return the form for migrations."""
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.BinaryField", arguments, options

    def from_db_value(self, value: Any, *_: Any) -> Digits | None:
        """A value from the database."""
        return None if value is None else Digits(value)

    def to_python(self, value: Any) -> Any:
        """A value as it is given; raises `ValidationError` for text that is no hexadecimal."""
        if not isinstance(value, str):
            return super().to_python(value)
        try:
            return Digits.fromhex(value)
        except ValueError as error:
            raise ValidationError("A hash is 64 hex digits.") from error

    def get_prep_value(self, value: Any) -> Any:
        """A value for a condition."""
        return bytes(self.to_python(value)) if isinstance(value, str) else super().get_prep_value(value)
