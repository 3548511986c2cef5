"""DynamoDB: the store, its table and its clients. Needs the extra ``dynamodb``."""

from retrysafe.backends.spec import BackendSpec

BACKEND = BackendSpec(
    package=__name__,
    title="DynamoDB",
    stores=("store:DynamodbStore",),
    time_travel={"store:DynamodbStore": "time_travel:age"},
    schemes={"dynamodb": "opening:from_url"},
    accepts="a boto3 DynamoDB client or Table",
    objects={
        "botocore.client:BaseClient": "opening:from_client",
        "boto3.resources.base:ServiceResource": "opening:from_table",
    },
    extra="dynamodb",
    footprints={"dynamodb": "footprint:dynamodb"},
    checks={"dynamodb": "checks:EXAMINATION"},
    steps={"dynamodb": "steps:step_store"},
)
