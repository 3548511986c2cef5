"""Operating keys: the Operator, and the verbs of the command line over it, on every store."""
