"""Encryption and quotas behind the middleware, which brings a codec of its own and knows of neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from retrysafe import Boundary, Keyring, Quota
from retrysafe.http.asgi import IdempotencyMiddleware

SECRET = b"card 4111 1111 1111 1111"
KEYRING = Keyring({"2026-11": bytes(32)})


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what nobody may read in the store: 422 to who asks for it."""
    while (await receive()).get("more_body"):
        pass
    status = 422 if scope["path"] == "/refused" else 201
    headers = [(b"content-type", b"text/plain"), (b"x-card", SECRET)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": SECRET})


async def post(boundary: Boundary, key: str, path: str = "/paid") -> httpx.Response:
    transport = httpx.ASGITransport(IdempotencyMiddleware(app, boundary, principal="shared"))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return await client.post(path, headers={"Idempotency-Key": key}, content=b"body")


def boundary(file: Path, **terms: Any) -> Boundary:
    return Boundary("api", store=f"sqlite:///{file}", observers=(), **terms)


def is_in(folder: Path) -> bool:
    """Tell whether the secret can be read in any file."""
    return any(SECRET in file.read_bytes() for file in folder.iterdir())


async def test_r30_stored_responses_are_encrypted_and_replayed_as_they_were(tmp_path: Path) -> None:
    made = boundary(tmp_path / "s.db", encryption=KEYRING)
    for path, status in (("/paid", 201), ("/refused", 422)):
        first, replay = await post(made, path, path), await post(made, path, path)
        assert (first.status_code, replay.status_code) == (status, status)
        assert replay.headers["idempotent-replayed"] == "true"
        assert replay.content == SECRET
        assert replay.headers["x-card"] == SECRET.decode()
    assert not is_in(tmp_path)
    await made.aclose()


async def test_r30_a_response_that_cannot_be_decrypted_is_not_made_again(tmp_path: Path) -> None:
    made = boundary(tmp_path / "s.db", encryption=KEYRING)
    await post(made, "k")
    other = boundary(tmp_path / "s.db", encryption=Keyring({"2027-01": bytes(32)}))
    refused = await post(other, "k")
    assert (refused.status_code, refused.json()["code"]) == (409, "result-unavailable")
    assert "2026-11" not in refused.text, "the ids of keys are nobody's business"
    assert (await post(made, "k")).content == SECRET
    await made.aclose()
    await other.aclose()


@pytest.mark.fault(75)
async def test_k11_a_client_over_its_quota_is_told_when_to_come_again(tmp_path: Path) -> None:
    made = boundary(tmp_path / "s.db", quota=Quota(rate="1/1h"))
    assert (await post(made, "first")).status_code == 201
    refused = await post(made, "second")
    assert (refused.status_code, refused.json()["code"]) == (429, "quota-exceeded")
    assert refused.json()["safe_new_key"] is False
    assert 3590 < int(refused.headers["retry-after"]) <= 3600
    assert (await post(made, "first")).headers["idempotent-replayed"] == "true"
    await made.aclose()
