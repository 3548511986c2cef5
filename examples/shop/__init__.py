"""A shop of three services: orders, inventory and mail, which tell each other by messages what has happened.

``make shop`` runs it; docs/how-to/build-a-pipeline.md explains it.
"""
