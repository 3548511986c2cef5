"""Redis and Valkey: the store, its clients and its URLs. Needs the extra ``redis``."""

from retrysafe.backends.spec import BackendSpec, CacheSpec

BACKEND = BackendSpec(
    package=__name__,
    title="Redis, Valkey",
    stores=("store:RedisStore",),
    time_travel={"store:RedisStore": "time_travel:age"},
    schemes={
        "unix": "opening:from_url",
        **{
            f"{scheme}{topology}": "opening:from_url"
            for scheme in ("redis", "rediss", "valkey", "valkeys")
            for topology in ("", "+cluster", "+sentinel")
        },
    },
    accepts="a client of redis-py",
    objects={
        "redis:Redis": "opening:from_client",
        "redis.asyncio:Redis": "opening:from_async_client",
        "redis.cluster:RedisCluster": "opening:from_cluster",
        "redis.asyncio.cluster:RedisCluster": "opening:from_async_cluster",
    },
    extra="redis",
    cache=CacheSpec("cache:RedisCache", "opening:impatient"),
    footprints={"redis": "footprint:redis"},
    checks={"redis": "checks:EXAMINATION"},
    steps={"redis": "steps:step_store"},
)
