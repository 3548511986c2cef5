"""Libraries that come with an extra of retrysafe: what an import without them says."""

from __future__ import annotations

from types import TracebackType


class NeedsExtra:
    """Around imports: where a library of an extra is missing, the error names the command that installs it.

    It stays a `ModuleNotFoundError` of that library, for who asks whether a module can be imported.
    """

    def __init__(self, extra: str, *libraries: str) -> None:
        self._extra = extra
        self._libraries = libraries or (extra,)

    def __enter__(self) -> None:
        """Begin to import."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Name the command."""
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in self._libraries:
            raise ModuleNotFoundError(
                f"{error}. It comes with an extra. Run:  pip install 'retrysafe[{self._extra}]'",
                name=error.name,
                path=error.path,
            ) from error
