"""Tasks of queues that run once for each key: Celery, Dramatiq, Taskiq, AWS Lambda."""

from retrysafe.tasks.delivery import GIVE_UP
from retrysafe.tasks.publisher import TaskPublisher, redrive

__all__ = ["GIVE_UP", "TaskPublisher", "redrive"]
