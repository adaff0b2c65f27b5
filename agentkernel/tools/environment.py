"""The environment that commands get: the caller's own, without what looks secret.

A command line that a model wrote can print every variable it was given. So commands
run by this package get `scrubbed_environment()` unless the caller hands them another
mapping. Names are all that is looked at: a secret in a variable with an innocent name
stays, and files that hold secrets are not touched.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Mapping

__all__ = ["SECRET_NAMES", "scrubbed_environment"]

# Patterns of names, compared in upper case.
SECRET_NAMES: tuple[str, ...] = (
    "*APIKEY*",
    "*API_KEY*",
    "*ACCESS_KEY*",
    "*PRIVATE_KEY*",
    "*_KEY",
    "*TOKEN",
    "*TOKEN_*",
    "*SECRET*",
    "*PASSWD*",
    "*PASSWORD*",
    "*_PASS",
    "*CREDENTIAL*",
    "*CONNECTION_STRING*",
    "*_DSN",
    "AWS_*",
    "DATABASE_URL",
)


def scrubbed_environment(
    base: Mapping[str, str] | None = None, *, keep: Collection[str] = ()
) -> dict[str, str]:
    """Copy an environment without the variables whose names look secret.

    Not a checkpoint.

    Args:
      base: what to copy; None for this process's own environment.
      keep: exact names that stay although a pattern of `SECRET_NAMES` fits them.

    """
    source = os.environ if base is None else base
    return {
        name: value
        for name, value in source.items()
        if name in keep or not _looks_secret(name)
    }


def _looks_secret(name: str) -> bool:
    upper = name.upper()
    return any(fnmatch.fnmatchcase(upper, pattern) for pattern in SECRET_NAMES)
