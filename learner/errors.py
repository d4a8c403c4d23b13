"""What ends a learner with a sentence."""

import logging

log = logging.getLogger(__name__)


class LearnerError(Exception):
    """The learner cannot start or go on; the message says why and what to do."""


def as_learner_error(error: ValueError) -> LearnerError:
    """The error that ends the learner; what a user's own function raised goes to the log, with its traceback."""
    if error.__cause__ is not None:
        log.error("%s", error, exc_info=error.__cause__)
    return LearnerError(str(error))
