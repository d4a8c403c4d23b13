"""Errors that end a learner with a sentence."""

import logging

log = logging.getLogger(__name__)


class LearnerRestart(Exception):  # noqa: N818 (no error: the next start goes on)
    """The learner has to be started again, to go on with its present settings."""


class LearnerError(Exception):
    """The learner cannot start or continue; the message gives the reason and the remedy."""


def as_learner_error(error: ValueError) -> LearnerError:
    """Convert an error to the one that ends the learner; log the traceback of a user's own function."""
    if error.__cause__ is not None:
        log.error("%s", error, exc_info=error.__cause__)
    return LearnerError(str(error))
