"""Jobs: work that outlives a turn of an agent, and ends with the agent at the latest."""

from .bodies import child_job as child_job, command_job as command_job
from .facts import JobRecord as JobRecord
from .job import (
    Job as Job,
    JobBody as JobBody,
    JobEnding as JobEnding,
    JobResult as JobResult,
    JobStatus as JobStatus,
)
from .jobs import (
    JobLimitError as JobLimitError,
    Jobs as Jobs,
    UnknownJobError as UnknownJobError,
)
from .tools import job_tools as job_tools
