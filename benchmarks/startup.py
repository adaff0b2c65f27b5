"""What `import agentkernel` costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from .measure import Row, Sizes, against, alternate

__all__ = ["importing"]

_PROGRAM = """
import time
start = time.process_time()
import {name}
print((time.process_time() - start) * 1e3)
"""


async def importing(sizes: Sizes) -> Sequence[Row]:
    """Each import in a fresh interpreter, byte code in place."""
    ours, trios = await alternate(
        sizes.imports, lambda: _import("agentkernel"), lambda: _import("trio")
    )
    ratio = against(ours, trios)
    return [Row("import agentkernel", "ms", ours, "import trio", trios, ratio, "2x")]


async def _import(name: str) -> float:  # noqa: RUF029  # a section is awaited
    program = _PROGRAM.format(name=name)
    done = subprocess.run(  # noqa: ASYNC221, S603  # there is nothing else to do meanwhile
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return float(done.stdout)
