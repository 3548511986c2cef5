"""Load profiles for a guarded HTTP endpoint, for Locust and k6, and an application to try them on.

docs/how-to/load-test.md says what each profile proves.
"""
