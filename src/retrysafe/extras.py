"""Libraries that come with an extra of retrysafe: what an import without them says."""

from __future__ import annotations

from types import TracebackType


class NeedsExtra:
    """Around imports: where a library of an extra is missing, the error names the command that installs it.

    Of several around each other the outermost names its extra, which brings all. It stays a `ModuleNotFoundError` of
    that library, for code that asks whether a module can be imported.
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
            missing = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
            raise ModuleNotFoundError(
                f"{missing}. It comes with an extra. Run:  pip install 'retrysafe[{self._extra}]'",
                name=error.name,
                path=error.path,
            ) from error
