"""The catalogue of providers: every row is whole, and a derived key fits it."""

from __future__ import annotations

import math
import re
from uuid import UUID

import pytest

from retrysafe import Boundary, ConfigurationError, InvalidKey, current
from retrysafe.providers import catalogue, provider


def test_every_row_is_whole() -> None:
    rows = catalogue()
    assert len(rows) >= 30
    assert len({one.title for one in rows.values()}) == len(rows)
    for name, one in rows.items():
        assert re.fullmatch(r"[a-z0-9-]+", name), name
        assert one.title, name
        assert one.operation, name
        assert re.fullmatch(r"https://[^\s/]+\.[a-z]+/\S+", one.source), name
        assert one.date.year >= 2026, name
        assert one.header is None or one.field is None, name
        assert one.longest is None or one.longest > 0, name
        assert one.kept is None or one.kept > 0, name
        assert one.alphabet in ("any", "ascii", "token", "uuid"), name
        assert one.probe is None or one.probe.method in ("GET", "POST"), name
        assert one.verified or not (one.header and one.kept), f"{name}: what was not read is not said"
        if one.header is None and one.field is None:
            assert (one.stored, one.concurrent, one.mismatch, one.kept, one.verified) == ("", "", "", None, False), name


def test_a_derived_key_fits_every_provider_that_takes_one() -> None:
    boundary = Boundary("providers", store="memory://")
    for one in catalogue().values():
        keys = []
        for again in range(2):
            with boundary.claim(f"{one.name} {again}") as claim:
                if one.header is None and one.field is None:
                    with pytest.raises(ConfigurationError, match="takes no key"):
                        one.key_for(claim, "charge")
                    continue
                keys.append(one.key_for(claim, "charge"))
                assert one.accept(keys[-1]) == keys[-1] == one.key_for(claim, "charge"), one
                assert UUID(keys[-1]).version == 4, one
        assert len(set(keys)) == len(keys)
    with boundary.claim("short") as claim:
        assert provider("ittybit").key_for(claim, "file") == claim.key_for("file").replace("-", "")
        with pytest.raises(ConfigurationError, match="up to 20 characters, and a derived key has 32"):
            provider("ittybit")._replace(longest=20).key_for(claim, "file")


def test_a_step_has_a_key_for_its_provider_too() -> None:
    boundary = Boundary("provider steps", store="memory://")

    def charge() -> str:
        return provider("stripe").key_for(current(), "charge")

    with boundary.claim("k") as claim:
        keys = {claim.step("one", charge), claim.step("two", charge), provider("stripe").key_for(claim, "charge")}
        assert len(keys) == 3


def test_a_key_that_the_provider_would_refuse_is_refused_before_it_is_sent() -> None:
    for name, key, said in (
        ("adyen", "k" * 65, "up to 64 characters; this one has 65"),
        ("circle", "order-17", "takes a UUID as a key"),
        ("mangopay", "order 17", 'letters, digits, "-" and "_"'),
        ("aws-ec2", "ordér", "printable ASCII"),
    ):
        with pytest.raises(InvalidKey, match=re.escape(said)):
            provider(name).accept(key)


def test_an_unknown_name_suggests_one() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'paypal'"):
        provider("paypall")
    with pytest.raises(ConfigurationError, match="There are stripe, adyen"):
        provider("quux")
    for wrong in ("stripe", ["strip"]):
        with pytest.raises(ConfigurationError, match=r"give a list|Did you mean"):
            Boundary("wrong providers", store="memory://", providers=wrong)


def test_memories_that_differ_are_told() -> None:
    day, week = "24h", "7d"
    boundary = Boundary("a day", store="memory://", window=day)
    weekly = Boundary("a week", store="memory://", window=week)
    refusing = Boundary("refusing", store="memory://", window=day, memory="31d", on_expired="refuse")
    assert provider("stripe").check(boundary) == []
    assert provider("paypal").check(weekly) == []
    (shorter,) = provider("stripe").check(weekly)
    assert shorter == (
        "Stripe keeps a key for 1 day, and the boundary recognises a retry for 7 days: a later one makes the call "
        "again."
    )
    (longer,) = provider("adyen").check(boundary)
    assert longer == (
        "Adyen keeps a key for 31 days, and the boundary takes it for new work after 1 day: new work under that key "
        "gets the old answer."
    )
    assert provider("adyen").check(refusing) == []
    assert math.isinf(provider("moov").kept or 0)
    assert "for ever" in provider("moov").check(refusing)[0]
