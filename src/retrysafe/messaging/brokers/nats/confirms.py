"""Publishing to a stream, and what it answers to each message.

``publish_async`` of the client library never answers for a message that a stream refuses (nats-py 2.16).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from retrysafe.messaging.brokers.spec import declaring
from retrysafe.protocol.messages import PublishResult, PublishStatus

Confirm = dict[str, Any]
_ACKED, _DUPLICATE = PublishResult(PublishStatus.ACKED), PublishResult(PublishStatus.DUPLICATE)
_NO_STREAM = PublishResult(
    PublishStatus.STALLED,
    "no stream answers for the subject: it has no leader just now, or there is none: declare it:  "
    f"{declaring()} --stream STREAM",
)
_UNREADABLE = PublishResult(PublishStatus.UNKNOWN, "the answer is none of a stream")
_NOBODY = "503"
_TOO_LARGE = (10054,)
"""Codes of errors for a message that is larger than its stream takes."""
_WITHOUT_JETSTREAM = (10008, 10023, 10028, 10039, 10047, 10076)
"""For a server or an account that takes nothing: JetStream is off or not up, or its memory or disk is used up."""


class Confirms:
    """Answers on their way, of one connection."""

    def __init__(self, client: Client) -> None:
        self._client, self._inbox = client, client.new_inbox()
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[Confirm]] = {}

    @classmethod
    async def open(cls, client: Client) -> Confirms:
        made = cls(client)
        await client.subscribe(f"{made._inbox}.*", cb=made._take_in)
        return made

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> asyncio.Future[Confirm]:
        """Send a message; the caller cancels the wait for its answer in the end."""
        reply = f"{self._inbox}.{next(self._numbers)}"
        answer = self._waiting[reply] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._waiting.pop(reply, None))
        try:
            await self._client.publish(subject, payload, reply=reply, headers=headers)
        except BaseException:
            answer.cancel()
            raise
        return answer

    async def _take_in(self, message: Msg) -> None:
        answer = self._waiting.get(message.subject)
        if answer is None or answer.done():
            return
        try:
            said = {} if message.data == b"" else json.loads(message.data)
        except ValueError:
            said = {}
        if (message.headers or {}).get("Status") == _NOBODY:
            said = {"nobody": True}
        answer.set_result(said if isinstance(said, dict) else {})


def result_of(said: Confirm) -> PublishResult:
    """Turn an answer into a result, whose text is the same for every message: results are grouped by it."""
    if "nobody" in said:
        return _NO_STREAM
    error = said.get("error")
    if not isinstance(error, dict):
        if "seq" not in said:
            return _UNREADABLE
        return _DUPLICATE if said.get("duplicate") else _ACKED
    number, text = error.get("err_code"), f"{error.get('description')} ({error.get('err_code')})"
    if number in _TOO_LARGE:
        return PublishResult(PublishStatus.REJECTED, text)
    if number in _WITHOUT_JETSTREAM:
        return PublishResult(PublishStatus.UNAVAILABLE, text)
    return PublishResult(PublishStatus.RETRYABLE if error.get("code") == 400 else PublishStatus.STALLED, text)
