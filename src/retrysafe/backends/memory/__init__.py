"""Records in the memory of one process."""

from retrysafe.backends.spec import BackendSpec

BACKEND = BackendSpec(
    package=__name__,
    title="memory",
    stores=("store:MemoryStore",),
    time_travel={"store:MemoryStore": "time_travel:age"},
    schemes={"memory": "opening:from_url"},
    unshared=("memory://",),
    checks={"memory": "checks:EXAMINATION"},
    steps={"memory": "steps:step_store"},
)
