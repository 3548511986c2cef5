"""The APIs that people call, and their terms for idempotency keys: a table of data, `catalogue.toml`, and its rows."""

from retrysafe.providers.provider import Alphabet, Probe, Provider, catalogue, provider

__all__ = ["Alphabet", "Probe", "Provider", "catalogue", "provider"]
