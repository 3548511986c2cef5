"""Every error of a claim says whose it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    Claim,
    Event,
    InProgress,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    ResultNotEncodable,
    RetrysafeError,
    StoredFailure,
)
from retrysafe.protocol import keys
from tests.tables import each_row


def reused(boundary: Boundary) -> None:
    for amount in (1, 2):
        with boundary.claim("K", operation="pay", payload=amount) as claim:
            claim.result = 1


def failed(boundary: Boundary) -> None:
    for _ in range(2):
        with boundary.claim("K", operation="pay") as claim:
            claim.fail(ValueError("no"))


def doubted(boundary: Boundary) -> None:
    with pytest.raises(TimeoutError), boundary.claim("K", operation="pay") as claim:
        claim.committed()
        raise TimeoutError
    with boundary.claim("K", operation="pay"):
        pass


def busy(boundary: Boundary) -> None:
    with boundary.claim("K", operation="pay"), boundary.claim("K", operation="pay"):
        pass


def unencodable(boundary: Boundary) -> None:
    with boundary.claim("K", operation="pay") as claim:
        claim.result = object()


def declared(boundary: Boundary) -> None:
    @boundary.once(key="key", operation="pay")
    def pay(key: str) -> None:
        from retrysafe import current

        current().fail(ValueError("no"))

    pay("K")


CASES: dict[Callable[[Boundary], None], type[RetrysafeError]] = {
    reused: KeyReused,
    failed: StoredFailure,
    doubted: OutcomeUnknown,
    busy: InProgress,
    unencodable: ResultNotEncodable,
    declared: StoredFailure,
}


@each_row("cause", CASES, ids=lambda cause: cause.__name__)
def test_an_error_names_boundary_operation_and_redacted_key(cause: Callable[[Boundary], None]) -> None:
    told: list[Event] = []
    boundary = Boundary("shop", store="memory://", observers=[told.append])
    with pytest.raises(CASES[cause]) as caught:
        cause(boundary)
    error = caught.value
    redacted = keys.redact(keys.lookup(None, "shop", "", "pay", "K"))
    assert (error.boundary, error.operation, error.key) == ("shop", "pay", redacted)
    assert str(error).endswith(
        f"(Boundary 'shop', operation 'pay'. Key {redacted}: retrysafe keys show --hash {redacted} --store memory://)"
    )
    assert {occurrence.key for occurrence in told} == {redacted}


async def test_errors_of_async_claims_do_so_too() -> None:
    boundary = Boundary("shop", store="memory://", observers=())
    with pytest.raises(KeyReused) as entering:
        for amount in (1, 2):
            async with boundary.claim("K", payload=amount) as claim:
                claim.result = 1
    with pytest.raises(ResultNotEncodable) as leaving:
        async with boundary.claim("L") as claim:
            claim.result = object()
    assert entering.value.boundary == leaving.value.boundary == "shop"


def test_an_error_stays_that_of_the_claim_it_came_from() -> None:
    inner, outer = (Boundary(name, store="memory://", observers=()) for name in ("inner", "outer"))
    with pytest.raises(ResultNotEncodable) as caught, outer.claim("O"), inner.claim("I") as claim:
        claim.result = object()
    assert caught.value.boundary == "inner"


def test_a_lost_lease_says_whose_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(claim: Claim) -> None: ...

    boundary = Boundary("shop", store="memory://", observers=(), probe=probe)
    with pytest.raises(LeaseLost) as caught, boundary.claim("K") as claim:
        assert claim._held is not None
        monkeypatch.setattr(claim._held, "is_held", lambda: False)
        claim.ensure_held()
    assert (caught.value.boundary, bool(caught.value.key)) == ("shop", True)


def test_an_error_without_a_claim_is_as_it_was() -> None:
    error: Any = KeyReused("detail")
    assert (error.boundary, error.operation, error.key) == ("", "", "")
    assert "Boundary" not in str(error)
