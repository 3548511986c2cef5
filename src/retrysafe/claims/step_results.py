"""The results of steps as they stand in their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrysafe.backends.steps import steps_of
from retrysafe.claims.codec import Codec, JSONCodec
from retrysafe.claims.outcome import decode_result, encode_result
from retrysafe.claims.sealing import Bound, seal, unseal
from retrysafe.errors import ResultNotEncodable
from retrysafe.protocol.records import StoredResult
from retrysafe.protocol.steps import At, StepRow, Work, label

if TYPE_CHECKING:
    from retrysafe.claims.settings import BoundarySettings


class StepResults:
    """Encodes results of a work's steps, and reads them back; each is sealed with the address of its row."""

    def __init__(self, settings: BoundarySettings, work: Work, scope: str, operation: str) -> None:
        self.settings, self.work, self.operation = settings, work, operation
        self.store = steps_of(settings.backend)
        self.scope = scope
        codec: Codec = settings.codec
        self._codec = JSONCodec() if hasattr(codec, "respond") else codec  # that is of HTTP responses

    def encode(self, at: At, result: Any, annotation: Any = None) -> StoredResult | None:
        """A result as it is stored."""
        try:
            return self.seal(at, encode_result(self._codec, result, annotation, self.settings.largest_result))
        except ResultNotEncodable as error:
            raise ResultNotEncodable(f"Step {label(at)}: {error.detail}") from error

    def read(self, row: StepRow, annotation: Any = None) -> Any:
        """The result of a row; None where it has none."""
        if row.result is None:
            return None
        return decode_result(self._codec, self.open(row), annotation)

    def seal(self, at: At, stored: StoredResult) -> StoredResult | None:
        """A result, encrypted if the boundary says so."""
        return seal(self.settings.encryption, stored, self._binding(at))

    def open(self, row: StepRow) -> StoredResult:
        """The result of a row as it was encoded."""
        assert row.result is not None
        return unseal(self.settings.encryption, row.result, self._binding(row.at))

    def _binding(self, at: At) -> Bound:
        return Bound.of_step(self.settings.name, self.scope, self.operation, self.work, at)
