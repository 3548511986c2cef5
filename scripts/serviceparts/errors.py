"""The faults of a service."""

from __future__ import annotations


class ServiceError(Exception):
    """A service did not start or stop."""


class CannotInstall(Exception):
    """Something is missing here, and a person has to install it."""
