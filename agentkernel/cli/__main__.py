"""`python -m agentkernel.cli` is the program `agentkernel`."""

from __future__ import annotations

import sys

from .entry import main

sys.exit(main())
