"""Jobs of real engines that are killed in the middle: run by `test_engines.py` in an environment that has the engine.

    python -m tests.streams.engines ENGINE FOLDER

FOLDER has ``place.pickle``, the target, and ``input``. A job kills its process, driver and all, after the commit of
some batch, unless the file ``killed`` is there.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

NUMBERS = range(60)
"""The contents of the input, in files of ten."""


def fill(folder: Path) -> None:
    """Write the input."""
    (folder / "input").mkdir()
    for start in range(0, len(NUMBERS), 10):
        text = "".join(f"{number}\n" for number in NUMBERS[start : start + 10])
        (folder / "input" / f"{start:03}.csv").write_text(text)


class Dying:
    """A ledger whose process dies once: after a commit, before the engine can note that its batch is done.

    With ``error``, the first commit of all fails with it before that, and the engine tries again.
    """

    def __init__(self, ledger: Any, folder: Path, at: int, error: Exception | None = None) -> None:
        self.ledger, self.mark, self.left = ledger, folder / "killed", at
        self.failed, self.error = folder / "task-failed", error

    def take(self, source: str) -> int:
        epoch: int = self.ledger.take(source)
        return epoch

    def apply(self, *arguments: Any, **options: Any) -> bool:
        done: bool = self.ledger.apply(*arguments, **options)
        if self.error is not None and not self.failed.exists():
            self.failed.touch()
            raise self.error
        self.left -= done
        if self.left == 0 and not self.mark.exists():
            self.mark.touch()
            os.killpg(0, signal.SIGKILL)
        return done

    def close(self) -> None:
        self.ledger.close()


def spark(place: Any, folder: Path) -> None:
    """Six micro-batches of a file each; the driver is killed after the third, and runs the third again.

    The first task of an executor fails, and is tried again.
    """
    from retrysafe.streams.spark import each_batch

    def write(frame: Any, target: Any) -> None:
        place.write(frame.rdd.map(number_of).collect(), target)

    failed = folder / "task-failed"

    def number_of(row: Any) -> int:
        """In a process of an executor's."""
        if not failed.exists():
            failed.touch()
            raise RuntimeError("this task fails once")
        return int(row.number)

    session = spark_session()
    files = session.readStream.schema("number int").option("maxFilesPerTrigger", 1).csv(str(folder / "input"))
    query = (
        files.writeStream.foreachBatch(each_batch(Dying(place.ledger(), folder, 3), write))
        .option("checkpointLocation", str(folder / os.environ.get("CHECKPOINT", "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


def spark_session() -> Any:
    """A session on loopback, with four attempts at a task."""
    from pyspark.sql import SparkSession

    local = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.master("local[1,4]")
    for name, value in local.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def spark_load(place: Any, folder: Path) -> None:
    """A frame that is loaded into a Delta table; the driver is killed after the commit, before the run is noted."""
    from retrysafe import Boundary, wait
    from retrysafe.loads import Loads

    boundary = Boundary("lake", store=f"sqlite:///{folder}/runs.db", lease="5s", concurrency=wait("60s"), observers=[])
    loads = Loads(boundary, f"delta://{folder}")
    publish, killed = loads._target.publish, folder / "killed"

    def published(work: Any) -> int:
        counted = publish(work)
        if not killed.exists():
            killed.touch()
            os.killpg(0, signal.SIGKILL)
        return counted

    def rows() -> Any:
        assert not killed.exists(), "the source is read again"
        return spark_session().read.schema("number int").csv(str(folder / "input")).toArrow()

    loads._target.publish = published  # type: ignore[method-assign]
    assert loads.load("numbers", rows=rows, run="r", tag=None).rows == len(NUMBERS)


def quix(place: Any, folder: Path) -> None:
    """Records of a topic, whose consumer is killed after a flush, before its offsets are committed.

    The first flush fails, and its records are read again.
    """
    from quixstreams import Application
    from quixstreams.sinks import SinkBackpressureError

    from retrysafe.streams.quix import LedgerSink

    def write(items: Any, target: Any) -> None:
        place.write([int(item.value) for item in items], target)

    app = Application(
        broker_address=os.environ["RETRYSAFE_TEST_KAFKA"].removeprefix("kafka://"),
        consumer_group=place.name,
        auto_offset_reset="earliest",
        state_dir=folder / "state",
        commit_every=10,
        consumer_extra_config={"session.timeout.ms": 6000},  # so long the group waits for the consumer that was killed
    )
    topic = app.topic(f"{place.name}-in", value_deserializer="str")
    app.dataframe(topic).sink(LedgerSink(Dying(place.ledger(), folder, 2, SinkBackpressureError(0.1)), write))
    app.run(timeout=10)


def beam(place: Any, folder: Path) -> None:
    """A file each; the pipeline is killed after the third, and run again from its beginning.

    The first bundle fails, and is tried again: by the runner that does so, and has no service of its own.
    """
    import apache_beam as b
    from apache_beam.io import fileio
    from apache_beam.options.pipeline_options import PipelineOptions

    from retrysafe.streams.beam import WriteOnce

    def read(file: Any) -> tuple[str, list[int]]:
        return Path(file.metadata.path).name, [int(line) for line in file.read_utf8().split()]

    with b.Pipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner"])) as pipeline:
        files = pipeline | fileio.MatchFiles(f"{folder}/input/*.csv") | fileio.ReadMatches() | b.Map(read)
        _ = files | b.ParDo(WriteOnce(Dying(place.ledger(), folder, 3, RuntimeError("once")), place.write))


def flink(place: Any, folder: Path) -> None:
    """Numbers by key; a function fails after a commit, and Flink goes on from its last checkpoint.

    With DRIVER, all of Flink is killed instead, and the next run is told of the checkpoint.
    """
    from pyflink.common import Configuration, Types, WatermarkStrategy
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    from retrysafe.streams.flink import WriteOnce

    settings = Configuration()
    for name, value in {
        "rest.port": "0",
        "taskmanager.memory.process.size": "800m",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "3",
        "restart-strategy.fixed-delay.delay": "100 ms",
        "execution.checkpointing.interval": "200 ms",
        "python.fn-execution.bundle.size": "1",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        **({"execution.state-recovery.path": f"file://{checkpoints(folder)[-1]}"} if checkpoints(folder) else {}),
    }.items():
        settings.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    environment.set_parallelism(1)
    source = NumberSequenceSource(NUMBERS.start, NUMBERS.stop - 1)  # `from_collection` is in no checkpoint
    numbers = environment.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())

    def write(number: int, target: Any) -> None:
        place.write([number], target)

    ledger = (Paced if "DRIVER" in os.environ else Failing)(place.ledger(), folder)
    numbers.key_by(lambda number: str(number % 3), key_type=Types.STRING()).process(WriteOnce(ledger, write))
    environment.execute("numbers")


def checkpoints(folder: Path) -> list[Path]:
    """The folders of Flink's complete checkpoints, the oldest first."""
    complete = (folder / "checkpoints").glob("*/chk-*/_metadata")
    return sorted((path.parent for path in complete), key=lambda path: int(path.name.removeprefix("chk-")))


class Paced(Dying):
    """A ledger that takes its time, and is killed after a commit that comes behind a checkpoint."""

    def __init__(self, ledger: Any, folder: Path) -> None:
        super().__init__(ledger, folder, 0)

    def apply(self, *arguments: Any, **options: Any) -> bool:
        with self.mark.with_name("seen").open("a") as seen:
            seen.write("x")
        known = not self.mark.exists() and len(checkpoints(self.mark.parent)) > 0
        late = not (known or self.mark.exists()) and self.mark.with_name("seen").stat().st_size > 30
        time.sleep(1.0 if late else 0.05)  # there has to be a checkpoint before the end
        self.left = int(known)
        return super().apply(*arguments, **options)


class Failing(Dying):
    """A ledger that fails once, after a commit."""

    def __init__(self, ledger: Any, folder: Path) -> None:
        super().__init__(ledger, folder, 0)

    def apply(self, source: str, span: Any, *arguments: Any, **options: Any) -> bool:
        done: bool = self.ledger.apply(source, span, *arguments, **options)
        if span.first == 10 and not self.mark.exists():
            self.mark.touch()
            raise RuntimeError("the task fails, and what it has committed is not in a checkpoint")
        return done


if __name__ == "__main__":
    chosen, where = sys.argv[1], Path(sys.argv[2])
    os.setpgid(0, 0)
    {"spark": spark, "spark_load": spark_load, "quix": quix, "beam": beam, "flink": flink}[chosen](
        pickle.loads((where / "place.pickle").read_bytes()),
        where,
    )
