"""What participants are known by."""

from __future__ import annotations

import os

import pytest

from retrysafe.process_name import ProcessName


@pytest.mark.slow
def test_a_name_lasts_and_is_nobody_elses_nor_that_of_a_child() -> None:
    one, other = ProcessName("here:"), ProcessName("here:")
    name = str(one)
    assert name.startswith(f"here:{os.getpid()}:")
    assert str(one) == name != str(other)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, str(one).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read().startswith(f"here:{child}:")
    assert str(one) == name
