"""The rule that docstrings, comments, names of tests and commit subjects begin with a noun or a verb."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WORDS = "What|Who|Whose|Whatever|Whoever|Where|How|Whether"
QUESTION = re.compile(rf"\s*({_WORDS})\b")
_DOCSTRING = re.compile(rf'\s*r?"""({_WORDS})\b')
_COMMENT = re.compile(rf"(?:\s*|.*  )# (?i:{_WORDS})\b")
_TEST = re.compile(rf"\s*(async )?def test_([a-z]\d+_)*(?i:{_WORDS})_")
LONGEST_SUBJECT = 72


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line that breaks the rule; a comment may go on with the line above."""
    above = ""
    for number, line in enumerate(source.splitlines(), 1):
        begins = "#" not in above and _COMMENT.match(line)
        if begins or _DOCSTRING.match(line) or _TEST.match(line):
            yield number, line.strip()
        above = line


def is_subject(line: str) -> bool:
    """Tell whether a line can be the subject of a commit."""
    return len(line) <= LONGEST_SUBJECT and not QUESTION.match(line)
