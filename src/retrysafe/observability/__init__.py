"""Events as logs, metrics and spans."""
