"""Generated logs whose true probabilities are known, in four families."""

from benchmarks.first_try.logs import additive, factors, shared, trees
from benchmarks.first_try.logs.log import Family, Log

__all__ = ["LOGS", "Family", "Log"]

# By name; their worlds were drawn before any rule of inference or size was looked at on them
LOGS: dict[str, Log] = {
    log.name: log for module in (additive, trees, factors, shared) for log in module.LOGS
}
