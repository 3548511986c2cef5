"""The rule for words: docstrings, comments, names and subjects begin with a noun or a verb, and actors have names."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from io import StringIO

_WORDS = "What|Who|Whose|Whatever|Whoever|Where|How|Whether"
QUESTION = re.compile(rf"\s*({_WORDS})\b")
_DOCSTRING = re.compile(rf'\s*r?"""({_WORDS})\b')
_COMMENT = re.compile(rf"(?:\s*|.*  )# (?i:{_WORDS})\b")
_TEST = re.compile(rf"\s*(async )?def test_([a-z]\d+_)*(?i:{_WORDS})_")
_VAGUE = re.compile(r"(?i)\b(nobody|somebody|everybody|anybody|whoever)\b")
LONGEST_SUBJECT = 72


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line that breaks the rule; a comment may go on with the line above."""
    above = ""
    for number, line in enumerate(source.splitlines(), 1):
        begins = "#" not in above and _COMMENT.match(line)
        if begins or _DOCSTRING.match(line) or _TEST.match(line):
            yield number, line.strip()
        above = line


def vague_actors(source: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each docstring and comment in which an actor has no name."""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        is_prose = token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string[:4])
        if is_prose and (found := _VAGUE.search(token.string)):
            yield token.start[0] + token.string.count("\n", 0, found.start()), found.group()


def is_subject(line: str) -> bool:
    """Tell whether a line can be the subject of a commit."""
    return len(line) <= LONGEST_SUBJECT and not QUESTION.match(line)
