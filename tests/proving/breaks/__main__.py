"""`python -m tests.proving.breaks [text …]`: run the breaks whose name or file contains a text, or all of them."""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor

from tests.proving.breaks import Break
from tests.proving.breaks.running import Result, check, run_broken
from tests.proving.breaks.table import all_breaks


def main() -> int:
    """Print each break with what became of it; exit code 1 if one survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.proving.breaks", description=__doc__)
    parser.add_argument("texts", nargs="*", metavar="text", help="part of a break's name or of its file")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="how many run at once (2)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what pytest printed, of killed ones too")
    wanted = parser.parse_args()
    breaks = [one for one in all_breaks().values() if _is_wanted(one, wanted.texts)]
    for one in breaks:
        check(one)
    survived = 0
    with ThreadPoolExecutor(wanted.jobs) as pool:
        for one, result in zip(breaks, pool.map(run_broken, breaks), strict=True):
            survived += not result.all_were("failed")
            _tell(one, result, verbose=wanted.verbose)
    print(f"{len(breaks)} breaks: {len(breaks) - survived} killed, {survived} survived")
    return 1 if survived or not breaks else 0


def _is_wanted(one: Break, texts: list[str]) -> bool:
    return not texts or any(text in one.name or text in one.file for text in texts)


def _tell(one: Break, result: Result, *, verbose: bool) -> None:
    killed = result.all_were("failed")
    print(f"{'killed  ' if killed else 'SURVIVED'}  {one.name}  ({one.file})", flush=True)
    for test, ending in result.endings.items():
        print(f"    {ending}: {test}")
    if verbose or not killed:
        print(result.output, flush=True)


raise SystemExit(main())
