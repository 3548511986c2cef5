"""The answers of an entity's management node, and of the node that takes tokens."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from access import rights_of
from contents import instant, outgoing
from entities import RefusedError, Store
from proton import UNDESCRIBED, Array, Data, Message, int32

_STATUS = {"amqp:not-found": 404, "amqp:unauthorized-access": 401}
_GONE = 410


class Answer(NamedTuple):
    """The body of an answer, or why there is none."""

    body: Any = None
    status: int = 200
    condition: str | None = None
    description: str = "OK"


def answered(request: Message, answer: Answer) -> Message:
    """The message that has an answer."""
    told: dict[str, Any] = {"statusDescription": answer.description, "status-description": answer.description}
    told |= {"statusCode": int32(answer.status), "status-code": int32(answer.status)}
    if answer.condition is not None:
        told |= {"errorCondition": answer.condition, "error-condition": answer.condition}
    return Message(correlation_id=request.id, properties=told, body=answer.body)


def put_token(request: Message) -> tuple[frozenset[str], Answer]:
    """The rights that a token gives."""
    rights = rights_of(str(request.body))
    if rights is None:
        return frozenset(), Answer(None, 401, None, "InvalidSignature: The token has an invalid signature.")
    return rights, Answer(None, 202)


def performed(store: Store, owner: object | None, request: Message, now: float) -> Answer:
    """The answer to an operation on a store; ``owner``: who has the session that it is about."""
    operation = str((request.properties or {}).get("operation", "")).removeprefix("com.microsoft:")
    if operation not in _OPERATIONS:
        return Answer(None, 501, "amqp:not-implemented", f"{operation} is not implemented")
    try:
        return Answer(_OPERATIONS[operation](store, owner, request.body or {}, now))
    except RefusedError as error:
        return Answer(None, _STATUS.get(error.condition, _GONE), error.condition, error.description)


def _tokens(body: dict[str, Any]) -> list[uuid.UUID]:
    return [one if isinstance(one, uuid.UUID) else uuid.UUID(bytes=bytes(one)) for one in body["lock-tokens"]]


def _renew(store: Store, owner: object | None, body: dict[str, Any], now: float) -> Any:
    until = [instant(store.renew(token, now)) for token in _tokens(body)]
    return {"expirations": Array(UNDESCRIBED, Data.TIMESTAMP, *until)}


def _renew_session(store: Store, owner: object | None, body: dict[str, Any], now: float) -> Any:
    return {"expiration": instant(store.renew_session(body["session-id"], owner, now))}


def _settle(store: Store, owner: object | None, body: dict[str, Any], now: float) -> Any:
    for token in _tokens(body):
        if body["disposition-status"] == "completed":
            store.complete(token, now)
        elif body["disposition-status"] == "abandoned":
            store.abandon(token, now)
        elif body["disposition-status"] == "suspended":
            reason, description = body.get("deadletter-reason", ""), body.get("deadletter-description", "")
            store.dead_letter(token, reason, description, now)
        else:
            raise RefusedError("amqp:not-implemented", "Messages are not deferred here.")
    return {}


def _peek(store: Store, owner: object | None, body: dict[str, Any], now: float) -> Any:
    after, most = int(body["from-sequence-number"]), int(body["message-count"])
    chosen = [one for seq, one in sorted(store.messages.items()) if seq >= after and one.expires > now]
    if "session-id" in body:
        chosen = [one for one in chosen if one.session == body["session-id"]]
    told = []
    for one in chosen[:most]:
        annotations = {"sequence-number": one.seq, "enqueued-time": instant(one.enqueued)}
        told.append({"message": outgoing(one.content, one.count, annotations)})
    return {"messages": told}


_OPERATIONS = {
    "renew-lock": _renew,
    "renew-session-lock": _renew_session,
    "update-disposition": _settle,
    "peek-message": _peek,
}
