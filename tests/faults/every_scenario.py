"""The whole table: importing the parts enters their scenarios."""

import chaos_scenarios  # noqa: F401
import failpoint_scenarios  # noqa: F401
import job_scenarios  # noqa: F401
import operation_scenarios  # noqa: F401
import postgres_scenarios  # noqa: F401
import process_scenarios  # noqa: F401
import redis_scenarios  # noqa: F401
import unflushed_scenarios  # noqa: F401
import webhook_scenarios  # noqa: F401
import worker_scenarios  # noqa: F401
from scenarios import SCENARIOS

__all__ = ["SCENARIOS"]
