"""Keyrings, which encrypt stored results in the form that `retrysafe.claims.sealing` describes.

The cipher is XAES-256-GCM (c2sp.org/XAES-256-GCM): AES-256-GCM under a key of its own for every message, derived
from the key and half of a 192-bit nonce by the counter mode of NIST SP 800-108r1 with CMAC. Plain AES-GCM must not
be used more than 2³² times with random nonces of its 96 bits; here 2⁸⁰ messages under one key are safe, so that no
process has to count, and nothing but a leak makes a rotation urgent. AES-GCM-SIV would bear repeated nonces too,
but OpenSSL has it only since 3.2.
"""

from __future__ import annotations

import binascii
import hmac
import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from retrysafe.claims.sealing import FORMAT, MEDIA_TYPE, NONCE, Bound, label_of
from retrysafe.errors import ConfigurationError, ResultUnreadable
from retrysafe.protocol.records import StoredResult, key_space

_KEY = 32
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PURPOSE = b"retrysafe result v1"
_FINGERPRINTS = b"retrysafe fingerprint v3"
_UNENCRYPTED = ("refuse", "read")


class Keyring:
    """Keys that encrypt stored results and failures, for ``Boundary(encryption=…)``. Needs the extra ``crypto``.

    Arguments:
        keys: key ids to keys. The first one encrypts, all of them decrypt. A key is 32 random bytes, or those in
            base64; an id has 1 to 64 letters, digits, dots, dashes or underscores, and is stored in the clear.
        unencrypted: what becomes of answers that were stored without encryption: "refuse" (`ResultUnreadable`), or
            "read" them, for one window after encryption was switched on. While they are read, anyone who can write to
            the store can put an answer of their own there.

    A stored result is bound to its boundary, scope, operation, key, media type and codec version, and to being a
    result or a failure: anywhere else it does not open. Lengths, states, times, scopes and names stay readable.
    """

    def __init__(self, keys: Mapping[str, bytes | str], *, unencrypted: Literal["refuse", "read"] = "refuse") -> None:
        if not keys:
            raise ConfigurationError("A keyring needs at least one key; Keyring.generate() makes one.")
        if unencrypted not in _UNENCRYPTED:
            raise ConfigurationError(f"unencrypted={unencrypted!r}: expected one of {', '.join(_UNENCRYPTED)}.")
        raw = {_check_id(name): _key_of(name, key) for name, key in keys.items()}
        self._ciphers = {name: _Xaes(key) for name, key in raw.items()}
        self.fingerprint_secrets = tuple(hmac.digest(key, _FINGERPRINTS, "sha256") for key in raw.values())
        """Secrets for the fingerprints of a boundary that has no other, the one that is written with first."""
        self._current = next(iter(self._ciphers))
        self._reads_unencrypted = unencrypted == "read"

    @staticmethod
    def generate() -> str:
        """A new random key, in base64."""
        return binascii.b2a_base64(os.urandom(_KEY), newline=False).decode()

    @classmethod
    def from_text(cls, text: str, *, unencrypted: Literal["refuse", "read"] = "refuse") -> Keyring:
        """A keyring of ``id:key`` pairs, the key in base64, separated by commas or white space; the first encrypts."""
        keys: dict[str, bytes | str] = {}
        for pair in text.replace(",", " ").split():
            name, colon, key = pair.partition(":")
            if not colon:
                raise ConfigurationError("A key in a keyring's text is id:base64; one has no colon.")
            if name in keys:
                raise ConfigurationError(f"The keyring has two keys with the id {name!r}.")
            keys[name] = key
        return cls(keys, unencrypted=unencrypted)

    @classmethod
    def from_env(
        cls, name: str = "RETRYSAFE_ENCRYPTION_KEYS", *, unencrypted: Literal["refuse", "read"] = "refuse"
    ) -> Keyring:
        """`from_text` of an environment variable."""
        text = os.environ.get(name)
        if not text:
            raise ConfigurationError(f"There are no encryption keys in the environment variable {name}.")
        return cls.from_text(text, unencrypted=unencrypted)

    @property
    def current(self) -> str:
        """The id of the key that encrypts."""
        return self._current

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys, the one that encrypts first."""
        return tuple(self._ciphers)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._ciphers)})"

    def seal(self, stored: StoredResult, bound: Bound) -> StoredResult:
        """Encrypt an answer for the record it is bound to. One without a body has nothing to hide."""
        if stored.body is None:
            return stored
        header = _header(self._current, stored)
        nonce = os.urandom(NONCE)
        sealed = self._ciphers[self._current].encrypt(nonce, stored.body, _associate(bound, header))
        return StoredResult(header + nonce + sealed, MEDIA_TYPE, FORMAT)

    def open(self, stored: StoredResult, bound: Bound) -> StoredResult:
        """Decrypt an answer; raises `ResultUnreadable`."""
        if stored.body is None:
            return stored
        if stored.media_type != MEDIA_TYPE:
            if self._reads_unencrypted:
                return stored
            raise ResultUnreadable(
                "The stored answer is not encrypted, and the boundary has encryption=. If encryption was switched on "
                "less than a window ago, or an operator settled the key without the keys, build the keyring with "
                "unencrypted='read' until that window has passed"
            )
        label = label_of(stored)
        cipher = self._ciphers.get(label.key_id)
        if cipher is None:
            known = ", ".join(self._ciphers)
            raise ResultUnreadable(
                f"The stored answer is encrypted with the key {label.key_id!r}, and the keyring has {known}"
            )
        header, rest = stored.body[: label.size], stored.body[label.size :]
        body = cipher.decrypt(rest[:NONCE], rest[NONCE:], _associate(bound, header))
        if body is None:
            raise ResultUnreadable(
                f"The stored answer cannot be decrypted with the key {label.key_id!r}: it was altered, or belongs to "
                "another record, or it was encrypted with another key of this id"
            )
        return StoredResult(body, label.media_type, label.codec_version)


def _header(key_id: str, stored: StoredResult) -> bytes:
    media_type = stored.media_type.encode()
    version = stored.codec_version.to_bytes(8, "big", signed=True)
    return bytes((len(key_id),)) + key_id.encode() + len(media_type).to_bytes(2, "big") + media_type + version


def _associate(bound: Bound, header: bytes) -> bytes:
    """Build the associated data of the encryption: each part with its length, so that none runs into the next."""
    texts = (bound.boundary, bound.scope, key_space(bound.operation), bound.state.value)
    parts = (_PURPOSE, *(text.encode() for text in texts), bound.key, header)
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _check_id(name: object) -> str:
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ConfigurationError(f"A key id has 1 to 64 letters, digits, dots, dashes or underscores, not {name!r}.")
    return name


def _key_of(name: str, given: bytes | str) -> bytes:
    """Never with the key in the error."""
    try:
        key = binascii.a2b_base64(given.encode(), strict_mode=True) if isinstance(given, str) else bytes(given)
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"The key {name!r} is not base64.") from None
    if len(key) != _KEY:
        raise ConfigurationError(
            f"The key {name!r} has {len(key)} bytes; it takes {_KEY}. Keyring.generate() makes one."
        )
    return key


class _Xaes:
    """XAES-256-GCM under one key."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigurationError(
                "Encryption needs the library cryptography: pip install 'retrysafe[crypto]'"
            ) from error
        self._aes = Cipher(algorithms.AES(key), modes.ECB())  # the block cipher itself, for CMAC
        self._gcm: Any = AESGCM
        self._invalid: type[Exception] = InvalidTag
        zero = int.from_bytes(self._blocks(bytes(16)), "big") << 1
        self._subkey = (zero ^ 0x87 if zero >> 128 else zero) & ((1 << 128) - 1)

    def encrypt(self, nonce: bytes, body: bytes, associated: bytes) -> bytes:
        """The encrypted body with its tag."""
        encrypted: bytes = self._gcm(self._derive(nonce)).encrypt(nonce[12:], body, associated)
        return encrypted

    def decrypt(self, nonce: bytes, sealed: bytes, associated: bytes) -> bytes | None:
        """The body; None if anything about it is not as it was."""
        try:
            body: bytes = self._gcm(self._derive(nonce)).decrypt(nonce[12:], sealed, associated)
        except self._invalid:
            return None
        return body

    def _derive(self, nonce: bytes) -> bytes:
        """The key of one message: CMAC of two whole blocks, each the counter, "X", zero, and half of the nonce."""
        blocks = (int.from_bytes(bytes((0, count, 0x58, 0)) + nonce[:12], "big") for count in (1, 2))
        return self._blocks(b"".join((block ^ self._subkey).to_bytes(16, "big") for block in blocks))

    def _blocks(self, blocks: bytes) -> bytes:
        return bytes(self._aes.encryptor().update(blocks))
