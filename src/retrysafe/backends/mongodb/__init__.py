"""MongoDB: the store, its collection and its clients. Needs the extra ``mongodb``."""

from retrysafe.backends.spec import BackendSpec

BACKEND = BackendSpec(
    package=__name__,
    title="MongoDB",
    stores=("store:MongodbStore",),
    time_travel={"store:MongodbStore": "time_travel:age"},
    schemes={"mongodb": "opening:from_url", "mongodb+srv": "opening:from_url"},
    accepts="a MongoClient or AsyncMongoClient of PyMongo",
    objects={
        "pymongo.synchronous.mongo_client:MongoClient": "opening:from_client",
        "pymongo.asynchronous.mongo_client:AsyncMongoClient": "opening:from_client",
    },
    transactions={
        "pymongo.synchronous.client_session:ClientSession": "opening:join",
        "pymongo.asynchronous.client_session:AsyncClientSession": "opening:join",
    },
    extra="mongodb",
    footprints={"mongodb": "footprint:mongodb"},
    checks={"mongodb": "checks:EXAMINATION"},
)
