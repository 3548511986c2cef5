"""A failing schedule is cut down and played again; many are gone through on all cores, from the command line."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable

import pytest

from retrysafe.backends.memory.store import MemoryClient, MemoryStore
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Clocks, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.transitions import Transition
from tests.laboratory.simulation import PLAN, PLANS, Check, Fault, Report, Script, Subject, simulate
from tests.laboratory.simulation.__main__ import main
from tests.laboratory.simulation.network import parse_faults
from tests.laboratory.simulation.plan import name_of, named
from tests.laboratory.simulation.shrinking import shrink
from tests.laboratory.simulation.soak import Work, soak
from tests.tables import each_row


class Unfenced(MemoryStore):
    """Settles whatever record is there: wrong only when an attempt comes after it has been taken over."""

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        def step(records: dict[bytes, Record], now: int) -> bool:
            record = records.get(ownership.key)
            owner = ownership if record is None else ownership._replace(attempt=record.attempt, token=record.token)
            done: bool = super(Unfenced, self).settle(owner, event, result).request(records, now)
            return done

        return Ask(step, lambda answer: answer)


def unfenced(clock: Callable[[], int]) -> Subject:
    """A store of somebody's own, with a defect."""
    return Subject(Unfenced(), MemoryClient(clock))


STORE = f"{__name__}:unfenced"


def failing() -> Report:
    return next(report for seed in range(500) if not (report := simulate(seed, subject=unfenced)).ok)


def test_a_failing_schedule_is_cut_down_to_the_faults_that_it_takes() -> None:
    report = failing()
    small = shrink(report, lambda script: simulate(report.seed, subject=unfenced, script=script))
    broken = report.violations[0].check
    assert broken in {violation.check for violation in small.violations}
    assert len(small.injected) < len(report.injected)
    for left_out in range(len(small.injected)):
        fewer = small.injected[:left_out] + small.injected[left_out + 1 :]
        again = simulate(report.seed, subject=unfenced, script=Script(fewer, small.without))
        assert broken not in {violation.check for violation in again.violations}


def test_actors_that_are_not_needed_are_left_out() -> None:
    report = next(
        found for seed in range(500) if not (found := simulate(seed, subject=unfenced, plan=PLANS["several keys"])).ok
    )
    small = shrink(report, lambda script: simulate(report.seed, subject=unfenced, plan=report.plan, script=script))
    assert small.without


def test_the_command_of_a_report_plays_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    report = failing()._replace(store=STORE)
    small = shrink(report, lambda script: simulate(report.seed, subject=unfenced, script=script))._replace(store=STORE)
    assert main(shlex.split(small.command)[3:]) == 1
    assert capsys.readouterr().out.strip() == str(small)
    assert main([*shlex.split(report.command)[3:], "--whole"]) == 1
    assert capsys.readouterr().out.strip() == str(report)


def test_one_schedule_that_keeps_its_promises_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7", "--plan", "everything"]) == 0
    assert capsys.readouterr().out.strip() == str(simulate(7, plan=PLANS["everything"]))


@each_row(
    "plan",
    [
        *PLANS.values(),
        PLAN._replace(workers=2, faults=(Fault.SWEPT,), clocks=Clocks(10, 20, 30), effects=("external",), hasty=0.5),
    ],
)
def test_a_plan_is_found_again_by_the_name_in_a_command(plan: object) -> None:
    assert named(name_of(plan)) == plan  # type: ignore[arg-type]


@each_row("wrong", ["--plan nonsense", "--plan '{\"nonsense\": 1}'", "--seed 1 --faults a.b"])
def test_commands_without_a_meaning_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(shlex.split(wrong))
    assert "--plan" in capsys.readouterr().err


def test_faults_are_read_as_they_are_written() -> None:
    injected = simulate(5, plan=PLANS["everything"]).injected
    read = parse_faults(" ".join(one.code for one in injected))
    assert [one._replace(at=0) for one in injected] == list(read)
    with pytest.raises(ConfigurationError, match=r"a\.3=NONSENSE"):
        parse_faults("a.3=NONSENSE")


def test_a_soak_goes_through_every_plan_and_tells_what_it_met() -> None:
    out = io.StringIO()
    found = soak(Work(range(10, 20), ("basic", "probes")), processes=2, out=out)
    assert (found.seeds, found.failures) == (20, ())
    assert "20 schedules: seeds 10–19 in 2 plans" in out.getvalue()
    for told in ("claimed", str(Fault.REPLY_LOST)):
        assert told in out.getvalue()


def test_a_soak_stops_at_the_first_failure_with_its_plan_and_its_command() -> None:
    out = io.StringIO()
    found = soak(Work(range(600), ("basic",), STORE), processes=2, out=out)
    report = found.failures[0]
    assert report.seed == failing().seed
    text = out.getvalue()
    assert f"again:  python -m tests.laboratory.simulation --seed {report.seed} --plan basic --store {STORE}" in text
    assert "--faults" in text
    assert str(Check(report.violations[0].check)) in text
    assert "go on with --from" in text
