"""`retrysafe bench`: what it counts on every store, what it leaves there, and what it says of a store at fault."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, StoreUnavailable
from retrysafe.admin.measuring import PAUSE, PREFIX, BenchProfile, Measured
from retrysafe.admin.operator import Operator
from retrysafe.backends.backend import Backend
from retrysafe.backends.memory.store import MemoryClient, MemoryStore
from retrysafe.backends.spec import StoreAccess
from retrysafe.cli import main
from retrysafe.protocol.records import Filter, Record, State
from tests.conftest import require
from tests.faults.helpers import DEADLINE, ROOT, environment, unique, until
from tests.processes import Program
from tests.stores.harnesses import URLS
from tests.tables import each_row

CLIENTS, CLAIMS = 4, 40
SECOND = 1_000_000
LOAD = ["--clients", str(CLIENTS), "--claims", str(CLAIMS)]
Output = pytest.CaptureFixture[str]


@pytest.fixture(params=[kind for kind in URLS if kind != "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    service, url_of = URLS[request.param]
    if service is not None:
        require(service)
    made: str = url_of(tmp_path)
    return made


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A SQLite file that is ready."""
    made = f"sqlite:///{tmp_path}/bench.db"
    assert main(["migrate", "--store", made]) == 0
    return made


def remembered(url: str, boundary: str) -> list[Record]:
    """The records of a boundary that are not forgotten; DynamoDB's clock tells seconds, and removing is its own."""
    with Operator(url, observers=()) as operator:
        every = list(operator.each(Filter(boundary=boundary)))
    return [record for record in every if record.tombstone_until > record.now + SECOND]


def said(output: Output) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.readouterr().out)
    return found


@pytest.mark.slow
def test_every_store_is_measured_and_left_as_it_was(url: str, capsys: Output) -> None:
    theirs = unique("shop")
    with closing(Boundary(theirs, store=url, observers=())) as boundary, boundary.claim("0", operation="fresh") as held:
        held.result = "theirs"
    before = remembered(url, theirs)
    capsys.readouterr()
    assert main(["bench", "--store", url, *LOAD, "--json"]) == 0
    found = said(capsys)
    profiles = {one["profile"]: one for one in found["profiles"]}
    assert list(profiles) == ["fresh", "replay", "storm"]
    assert all(one["claims"] == CLAIMS and not one["errors"] and not one["ran_twice"] for one in profiles.values())
    assert (profiles["fresh"]["ran"], profiles["replay"]["replayed"]) == (CLAIMS, CLAIMS)
    assert profiles["storm"]["ran"] == CLAIMS / CLIENTS, "of each storm one runs"
    assert found["boundary"].startswith(PREFIX)
    assert remembered(url, found["boundary"]) == []
    after = remembered(url, theirs)
    assert [(one.key, one.version) for one in after] == [(one.key, one.version) for one in before]


def test_latencies_and_rates_are_of_the_answered_claims(file: str, capsys: Output) -> None:
    capsys.readouterr()
    assert main(["bench", "--store", file, "--profile", "replay", "--seconds", "0.2", "--json"]) == 0
    (only,) = said(capsys)["profiles"]
    times = only["latency_ms"]
    assert only["claims"] > 0
    assert only["rate"] == pytest.approx(only["claims"] / only["seconds"])
    assert only["seconds"] >= 0.2, "it lasts as long as it was told"
    assert 0 < times["p50"] <= times["p95"] <= times["p99"] <= times["max"]


def test_the_measured_rate_stands_beside_what_it_needs(file: str, capsys: Output) -> None:
    capsys.readouterr()
    assert main(["bench", "--store", file, *LOAD, "--result", "2kB"]) == 0
    out = capsys.readouterr().out
    assert "no key ran twice" in out
    assert "new keys a second, remembered for 24h, would be" in out
    assert "retrysafe plan --kind sqlite --rate N/s --window 24h --result 2000B" in out


def test_results_have_the_size_that_was_asked_for(capsys: Output) -> None:
    """It is looked at before the records are forgotten."""
    sizes: set[int] = set()

    class Looking(MemoryClient):
        def __call__(self, request: Any, /) -> Any:
            done = super().__call__(request)
            sizes.update(
                len(one.result.body or b"") for one in [*self.records.values()] if one.result and "fresh" in one
            )
            return done

    assert main(["bench", *LOAD, "--profile", "fresh", "--result", "1234B", "--json"], store=_memory(Looking())) == 0
    assert sizes == {1234}


def test_memory_is_measured_and_said_to_be_of_this_process(capsys: Output) -> None:
    assert main(["bench", "--store", "memory://", *LOAD]) == 0
    out = capsys.readouterr().out
    assert "records of this process only" in out
    assert "retrysafe plan" not in out


# ---------------------------------------------------------------- what is at fault


def _memory(client: MemoryClient) -> Backend:
    return Backend(MemoryStore(), StoreAccess("memory://faulty", sync=lambda: client, immediate=True))


class Forgetful(MemoryClient):
    """Loses every record of a storm as soon as it is written."""

    def __call__(self, request: Any, /) -> Any:
        done = super().__call__(request)
        for key in [key for key, record in list(self.records.items()) if record.operation == "storm"]:
            self.records.pop(key, None)
        return done


class Failing(MemoryClient):
    """Is gone as soon as a record for which ``gone`` is true was written."""

    def __init__(self, gone: Callable[[Record], bool]) -> None:
        super().__init__()
        self._gone = gone
        self.is_gone = False

    def __call__(self, request: Any, /) -> Any:
        if self.is_gone:
            raise StoreUnavailable("the server is gone")
        done = super().__call__(request)
        self.is_gone = any(self._gone(record) for record in list(self.records.values()))
        return done


def test_a_key_that_ran_twice_fails_the_run(capsys: Output) -> None:
    assert main(["bench", *LOAD, "--json"], store=_memory(Forgetful())) == 1
    profiles = {one["profile"]: one["ran_twice"] for one in said(capsys)["profiles"]}
    assert profiles == {"fresh": [], "replay": [], "storm": [str(number) for number in range(CLAIMS // CLIENTS)]}
    assert main(["bench", *LOAD], store=_memory(Forgetful())) == 1
    out = capsys.readouterr().out
    assert "!! storm: 10 keys ran more than once: 0, 1, 2" in out
    assert "no key ran twice" not in out


def test_a_store_that_goes_away_is_counted_and_the_command_that_removes_the_rest_is_shown(capsys: Output) -> None:
    client = Failing(lambda record: record.operation == "storm")
    assert main(["bench", *LOAD, "--json"], store=_memory(client)) == 2
    output = capsys.readouterr()
    found = json.loads(output.out)
    profiles = {one["profile"]: one for one in found["profiles"]}
    assert profiles["fresh"]["errors"] == {}
    storm = profiles["storm"]
    assert list(storm["errors"]) == ["StoreUnavailable"]
    assert storm["claims"] + storm["errors"]["StoreUnavailable"] == CLAIMS
    assert storm["claims"] <= CLIENTS, "only those of the first round can have been answered"
    assert "the server is gone" in output.err
    assert f"retrysafe bench --forget {found['boundary']}\n" in output.err


def test_a_store_that_goes_away_before_anything_is_measured(capsys: Output) -> None:
    client = Failing(lambda record: record.operation == "warming")
    assert main(["bench", *LOAD], store=_memory(client)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "retrysafe bench --forget retrysafe-bench-" in output.err


@pytest.fixture
def left(file: str) -> str:
    """The boundary of a run that could not forget the key it has completed."""
    name = f"{PREFIX}0123abcd"
    with (
        closing(Boundary(name, store=file, effects="external", observers=())) as boundary,
        boundary.claim("0") as claim,
    ):
        claim.result = "left"
    return name


def test_records_left_behind_are_forgotten_by_the_command(file: str, left: str, capsys: Output) -> None:
    with closing(Boundary("shop", store=file, observers=())) as boundary, boundary.claim("0") as claim:
        claim.result = "theirs"
    capsys.readouterr()
    assert main(["bench", "--store", file, "--forget", left]) == 0
    assert capsys.readouterr().out == "forgotten: 1\n"
    assert remembered(file, left) == []
    assert len(remembered(file, "shop")) == 1


@pytest.mark.slow
def test_records_held_by_an_attempt_are_left_and_reported(file: str, left: str, capsys: Output) -> None:
    program = [sys.executable, "-c", _HOLDING, left, file]
    assert subprocess.run(program, cwd=ROOT, env=environment(), check=False, timeout=DEADLINE).returncode == 9
    capsys.readouterr()
    assert main(["bench", "--store", file, "--forget", left, "--json"]) == 2
    output = capsys.readouterr()
    assert json.loads(output.out) == {"forgotten": 1, "left": 1}
    assert "1 records are held by attempts whose end is not stored" in output.err


_HOLDING = """
import os, sys
from retrysafe import Boundary

Boundary(sys.argv[1], store=sys.argv[2], effects="external", observers=()).claim("held").__enter__()
os._exit(9)
"""


def test_records_of_others_are_never_forgotten(file: str, capsys: Output) -> None:
    with closing(Boundary("shop", store=file, observers=())) as boundary, boundary.claim("0") as claim:
        claim.result = "theirs"
    for name in ("shop", PREFIX, f"{PREFIX}of-shop", f"{PREFIX}0123abcd\n"):
        assert main(["bench", "--store", file, "--forget", name]) == 2
        assert "is not the boundary of a measurement" in capsys.readouterr().err
    assert len(remembered(file, "shop")) == 1


def test_a_store_that_serves_async_code_only_cannot_forget_either(capsys: Output) -> None:
    store = "postgresql+asyncpg://127.0.0.1:1/x"
    assert main(["bench", "--store", store, "--forget", f"{PREFIX}0123abcd"]) == 2
    assert "by a URL that serves both" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_run_that_is_interrupted_forgets_what_it_wrote(file: str, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "retrysafe", "bench", "--store", file, "--clients", "2", "--seconds", "3600"]
    with Operator(file, observers=()) as operator:
        with Program(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True) as process:
            until(lambda: operator.count(Filter(operation="fresh")).records > 2)
            process.send_signal(number)
            _, complaints = process.communicate(timeout=DEADLINE)
        assert (process.returncode, complaints) == (130, "")
        assert operator.count().records == 0


@pytest.mark.slow
def test_a_run_whose_report_nobody_reads_forgets_what_it_wrote(file: str) -> None:
    """As with `| head -1`."""
    command = [sys.executable, "-m", "retrysafe", "bench", "--store", file, *LOAD]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(DEADLINE) == 141
    with Operator(file, observers=()) as operator:
        assert operator.count().records == 0


def _is_warm(client: MemoryClient) -> bool:
    """Tell whether what happens now belongs to a profile."""
    ended = [one for one in list(client.records.values()) if one.state is State.COMPLETED]
    return len(ended) >= CLIENTS and threading.current_thread().name.startswith("retrysafe-bench")


class Refusing(MemoryClient):
    """Refuses every claim of a profile."""

    def __call__(self, request: Any, /) -> Any:
        if _is_warm(self):
            raise StoreUnavailable("the disk is full")
        return super().__call__(request)


def test_a_profile_of_which_nothing_was_answered_fails_the_run_and_floods_nothing(capsys: Output) -> None:
    client = Refusing()
    assert main(["bench", *LOAD, "--profile", "fresh"], store=_memory(client)) == 2
    assert f"!! fresh: {CLAIMS} claims failed with StoreUnavailable\n!! fresh: no claim" in capsys.readouterr().out
    assert client.records == {}
    assert main(["bench", *LOAD, "--profile", "fresh", "--json"], store=_memory(Refusing())) == 2
    (only,) = said(capsys)["profiles"]
    assert only["seconds"] >= CLAIMS / CLIENTS * PAUSE, "each client has waited after each failure"


@each_row(
    ("store", "complaint"),
    [
        ("postgresql://who:secret@127.0.0.1:1/x", "Connection refused"),
        ("sqlite:///{path}/none.db", "does not exist"),
        ("postgresql+asyncpg://127.0.0.1/x", "serves async code only"),
    ],
)
def test_a_store_that_cannot_be_measured_is_said_in_one_line(
    store: str, complaint: str, tmp_path: Path, capsys: Output
) -> None:
    assert main(["bench", "--store", store.format(path=tmp_path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert complaint in output.err
    assert "secret" not in output.err
    assert output.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_a_schema_is_answered_with_the_command_that_makes_it(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "empty.db").touch()
    assert main(["bench", "--store", f"sqlite:///{tmp_path}/empty.db", *LOAD]) == 2
    assert "retrysafe migrate --store" in capsys.readouterr().err


@each_row(
    ("options", "complaint"),
    [
        (["--clients", "0"], "from 1 to 1000"),
        (["--claims", "0"], "from 1 to 1,000,000"),
        (["--seconds", "0"], "more than 0"),
        (["--seconds", "nan"], "more than 0"),
        (["--result", "big"], "--result='big' is not a size"),
    ],
)
def test_a_load_that_cannot_be_is_refused(options: list[str], complaint: str, capsys: Output) -> None:
    assert main(["bench", "--store", "memory://", *options]) == 2
    assert complaint in capsys.readouterr().err


def test_a_result_that_the_store_cannot_keep_is_refused(capsys: Output) -> None:
    url = "dynamodb://table?region=us-east-1&endpoint=http://127.0.0.1:1"
    assert main(["bench", "--store", url, "--result", "1MB"]) == 2
    assert "this store keeps up to" in capsys.readouterr().err


def test_shares_of_latencies() -> None:
    measured = Measured(BenchProfile.FRESH, 4, 0, 0, {}, (), 1.0, [0.1, 0.2, 0.3, 0.4])
    assert [measured.latency(share) for share in (0.5, 0.51, 0.95, 1.0)] == [0.2, 0.3, 0.4, 0.4]
    assert measured._replace(latencies=[]).latency(0.5) == 0.0
