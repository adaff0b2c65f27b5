"""Approvals: whether a call may run, decided by a policy or by whoever is asked.

    policy ─▶ Approvals ─▶ approval/asked ─▶ any client ─▶ answer ─▶ approval/decided

`Approvals` listens to agents; `Question` is what a client shows.
"""

from .approvals import Approvals as Approvals
from .grants import GRANT as GRANT
from .question import (
    ApprovalScope as ApprovalScope,
    Question as Question,
    StaleApprovalError as StaleApprovalError,
)
