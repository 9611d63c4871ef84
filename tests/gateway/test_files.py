"""A gateway may open as many files as its doors may have connections."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from gateway.server import allow_files
soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
allow_files(4000)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "left"),
    [(256, 5000, "4000 5000"), (256, 300, "300 300"), (4500, 5000, "4500 5000")],
)
def test_the_limit_is_raised_as_far_as_it_may_be(soft: int, hard: int, left: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == left
