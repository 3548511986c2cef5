"""The conformance runner, proved on a correct server and on servers that each break a rule."""
