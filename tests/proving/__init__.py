"""The project's proof of itself: the effort of tests, their seeds, and their findings.

A test that proves something is an ordinary test. It takes its chance from `chance` and its size from `effort`, marks
the rows of the fault catalogue that it injects (`@pytest.mark.fault(2, 13)`), and reports what it did by `proof`.
`make test` runs all of them briefly from a new seed, `make prove` those marked `prove` at full length, and writes the
figures of the guarantees page.
"""
