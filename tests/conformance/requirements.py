"""What has to be proved: the ids of the clauses in `docs/contract.md`.

A clause is a letter for its chapter, a number, and a letter for each claim if the
clause makes more than one.
"""

from __future__ import annotations

from typing import Final


def ids(words: str) -> tuple[str, ...]:
    return tuple(words.split())


CLAUSES: Final[tuple[str, ...]] = ids(
    """
    C1a C1b C1c
    C2a C2b C2c C2d
    C3a C3b C3c C3d C3e
    C4a C4b C4c C4d
    C5a C5b C5c C5d C5e
    C6a C6b C6c C6d C6e
    C7a C7b C7c
    C8a C8b C8c C8d
    C9a C9b C9c
    C10a C10b C10c C10d C10e
    C11a C11b C11c C11d C11e
    C12a C12b C12c C12d
    C13a C13b C13c
    S1
    S2a S2b S2c
    S3a S3b S3c
    S4
    I1a I1b I1c I1d I1e
    I2a I2b I2c
    I3a I3b I3c
    I4a I4b I4c
    I5a I5b I5c
    I6
    T1a T1b T1c T1d
    T2a T2b T2c T2d T2e
    T3a T3b T3c T3d
    T4a T4b T4c
    T5a T5b T5c
    T6
    T7a T7b
    T8
    T9
    D1a D1b D1c D1d
    D2a D2b D2c D2d
    D3a D3b D3c D3d
    D4
    D5a D5b D5c
    D6a D6b D6c D6d
    L1a L1b L1c
    L2
    L3
    """
)

# Clauses that no test proves as a whole. Each leaves this list with its test; one
# that is listed here may have tests, one that is not must have some.
DEFERRED: Final[frozenset[str]] = frozenset()
