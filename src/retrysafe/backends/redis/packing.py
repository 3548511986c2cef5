"""The format of a record in Redis: one string, which scripts and Python read.

    head     the format, the state, the numbers, and the size of the next part
    claim    what stays until another attempt takes the key: attempt, boundary, scope, operation, effects and
             fingerprint, behind the size of each
    result   nothing; or whether there is a body, the codec's version, the size of the media type, that, and the body

A hash with a field for each value, as retrysafe 0.1 wrote it, takes three times the memory and the time. Such hashes
are read as if they were strings, and stay as they are until something is written to them. An older retrysafe cannot
read strings: Redis refuses its scripts, so that it runs nothing.
"""

from __future__ import annotations

import struct

from retrysafe.errors import StoreMisconfigured
from retrysafe.protocol.records import ClaimRequest, Micros, Record, State, StoredResult
from retrysafe.protocol.transitions import state_of

FORMAT = 1
_STATES = (State.RUNNING, State.UNKNOWN, State.COMPLETED, State.FAILED, State.RELEASED)
"""By their numbers, from 1; those behind the second expire."""
_NUMBERS = {state: number for number, state in enumerate(_STATES, 1)}
_HEAD = struct.Struct(">BB7qII")
_SIZES = struct.Struct(">6I")
_RESULT = struct.Struct(">BII")

LUA = (
    f"""
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local HEAD, HEAD_SIZE = '>BBi8i8i8i8i8i8i8I4I4', {_HEAD.size}
local STATES = {{{", ".join(f"'{state}'" for state in _STATES)}}}"""
    """
local function text(number) return string.format('%.0f', number) end
local function of_hash()
  local v = redis.call('HMGET', KEYS[1], 'attempt', 'boundary', 'scope', 'operation', 'effects', 'fingerprint',
    'state', 'token', 'lease_until', 'created', 'updated', 'expires', 'forget', 'version', 'attempts',
    'result', 'media_type', 'codec_version')
  if not v[7] then return nil end
  local claim = struct.pack('>I4I4I4I4I4I4', #v[1], #v[2], #v[3], #v[4], #v[5], #v[6]) .. table.concat(v, '', 1, 6)
  local state, result = 0, ''
  for number, name in ipairs(STATES) do if name == v[7] then state = number end end
  if v[17] then
    result = struct.pack('>BI4I4', v[16] and 1 or 0, v[18], #v[17]) .. v[17] .. (v[16] or '')
  end
  return struct.pack(HEAD, 1, state, v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15], #claim) .. claim .. result
end
local function stored()
  local packed = redis.pcall('GET', KEYS[1])
  if type(packed) == 'table' then return of_hash() end
  return packed
end
local function load()
  local packed = stored()
  if not packed then return nil end
  local record = {packed = packed}
  record.format, record.state, record.token, record.lease_until, record.created, record.updated, record.expires,
    record.forget, record.version, record.attempts, record.claim_size = struct.unpack(HEAD, packed)
  record.attempt = string.sub(packed, HEAD_SIZE + 25, HEAD_SIZE + 24 + struct.unpack('>I4', packed, HEAD_SIZE + 1))
  return record
end
local function claim_of(record) return string.sub(record.packed, HEAD_SIZE + 1, HEAD_SIZE + record.claim_size) end
local function reply(packed) return packed and {packed, time[1], time[2]} end
local function standing(record)
  if not record then return 'absent' end
  if record.format ~= 1 then return 'of a newer retrysafe' end
  local state = STATES[record.state]
  if state == 'running' then
    if record.lease_until > now then return 'running' else return 'lapsed' end
  end
  if state == 'unknown' or not state then return state or 'of a newer retrysafe' end
  if record.forget <= now then return 'forgotten' end
  if record.expires <= now then return 'expired' end
  return state
end
local function allowed(record, sources) return string.find(sources, ',' .. standing(record) .. ',', 1, true) end
local function expire_at(forget) return text(math.ceil(forget / 1000)) end
local function write(state, token, lease_until, created, window, memory, version, attempts, claim, result)
  local forget = now + memory
  local packed = struct.pack(HEAD, 1, state, token, lease_until, created, now, now + window, forget, version,
    attempts, #claim) .. claim .. result
  if tonumber(state) > 2 then
    redis.call('SET', KEYS[1], packed, 'PXAT', expire_at(forget))
  else
    redis.call('SET', KEYS[1], packed)
  end
  return packed
end
"""
)
"""The common beginning of all scripts about a record."""


def number_of(state: State) -> int:
    return _NUMBERS[state]


def claim_part(request: ClaimRequest) -> bytes:
    """Encode the part of a record that stays until another attempt takes its key."""
    parts = (
        request.attempt.encode(),
        request.boundary.encode(),
        request.scope.encode(),
        (request.recorded or request.operation).encode(),
        request.effects.encode(),
        request.fingerprint,
    )
    return _SIZES.pack(*map(len, parts)) + b"".join(parts)


def result_part(result: StoredResult | None) -> bytes:
    if result is None:
        return b""
    media_type, body = result.media_type.encode(), result.body
    return _RESULT.pack(body is not None, result.codec_version, len(media_type)) + media_type + (body or b"")


def unpack(key: bytes, packed: bytes, now: Micros) -> Record:
    """The record; raises `StoreMisconfigured` for one that a newer retrysafe has written."""
    if packed[0] != FORMAT:
        raise StoreMisconfigured(
            f"Its record has the format {packed[0]}, which only a newer retrysafe understands: upgrade it here, too"
        )
    _, number, *numbers, attempts, claim_size = _HEAD.unpack_from(packed)
    token, lease_until, created, updated, expires, forget, version = numbers
    at, values = _HEAD.size + _SIZES.size, []
    for size in _SIZES.unpack_from(packed, _HEAD.size):
        values.append(packed[at : at + size])
        at += size
    *texts, fingerprint = values
    attempt, boundary, scope, operation, effects = (text.decode() for text in texts)
    state = _STATES[number - 1] if 0 < number <= len(_STATES) else state_of(str(number))
    result = result_at(packed, _HEAD.size + claim_size)
    claimed = key, boundary, scope, operation, fingerprint, state, attempt, token, attempts, effects
    return Record._make((*claimed, lease_until, created, updated, expires, forget, version, result, now))


def result_at(packed: bytes, at: int) -> StoredResult | None:
    if at == len(packed):
        return None
    has_body, codec_version, size = _RESULT.unpack_from(packed, at)
    at += _RESULT.size
    body = packed[at + size :] if has_body else None
    return StoredResult(body, packed[at : at + size].decode(), codec_version)
