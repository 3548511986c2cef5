"""The errors inside exception groups, such as those that a TaskGroup raises."""

from __future__ import annotations


def leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group and of the groups in it; an error that is no group is its own only leaf."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for one in error.exceptions for leaf in leaves(one)]


def unwrap(error: BaseException) -> BaseException:
    """The only error of a group that has only one; else the error as it is."""
    found = leaves(error)
    return found[0] if len(found) == 1 else error


def every(error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Tell whether an error is of one of the types, or is a group of nothing else."""
    if isinstance(error, kinds):
        return True
    return isinstance(error, BaseExceptionGroup) and all(every(one, kinds) for one in error.exceptions)
