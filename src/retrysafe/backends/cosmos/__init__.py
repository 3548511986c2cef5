"""Azure Cosmos DB: the store, its container and its clients. Needs the extra ``cosmos``."""

from retrysafe.backends.spec import BackendSpec

BACKEND = BackendSpec(
    package=__name__,
    title="Cosmos DB",
    stores=("store:CosmosStore",),
    time_travel={"store:CosmosStore": "time_travel:age"},
    schemes={"cosmos": "opening:from_url"},
    accepts="a DatabaseProxy of azure-cosmos",
    objects={
        "azure.cosmos.database:DatabaseProxy": "opening:from_database",
        "azure.cosmos.aio._database:DatabaseProxy": "opening:from_database",
    },
    extra="cosmos",
    footprints={"cosmos": "footprint:cosmos"},
    checks={"cosmos": "checks:EXAMINATION"},
)
