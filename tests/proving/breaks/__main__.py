"""`python -m tests.proving.breaks [text …]`: run the breaks of which name, file or table has a text, or all."""

from __future__ import annotations

import argparse
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.proving.breaks import Break
from tests.proving.breaks.running import Result, check, run_broken
from tests.proving.breaks.table import all_breaks, tables


def main() -> int:
    """Print each break with what became of it; exit code 1 unless all were killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proving.breaks", description=__doc__)
    parser.add_argument(
        "texts", nargs="*", metavar="text", help="part of a break's name, of its file or of its table, such as protocol"
    )
    parser.add_argument("-j", "--jobs", type=int, default=2, help="how many run at once (2)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what pytest printed, of killed ones too")
    wanted = parser.parse_args()
    all_breaks()  # no two of one name
    breaks = [one for table, entries in tables().items() for one in entries if _is_wanted(table, one, wanted.texts)]
    for one in breaks:
        check(one)
    became: Counter[str] = Counter()
    with ThreadPoolExecutor(wanted.jobs) as pool:
        for one, result in zip(breaks, pool.map(run_broken, breaks), strict=True):
            became[result.verdict] += 1
            _tell(one, result, verbose=wanted.verbose)
    print(f"{len(breaks)} breaks: {', '.join(f'{became[how]} {how}' for how in ('killed', 'survived', 'not run'))}")
    return 0 if breaks and became["killed"] == len(breaks) else 1


def _is_wanted(table: str, one: Break, texts: list[str]) -> bool:
    return not texts or any(text in known for text in texts for known in (table, one.name, one.file))


def _tell(one: Break, result: Result, *, verbose: bool) -> None:
    killed = result.verdict == "killed"
    print(f"{result.verdict if killed else result.verdict.upper():8}  {one.name}  ({one.file})", flush=True)
    for test, ending in result.endings.items():
        print(f"    {ending}: {test}")
    if verbose or not killed:
        print(result.output, flush=True)


raise SystemExit(main())
