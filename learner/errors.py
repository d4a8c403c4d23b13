"""What ends a learner with a sentence."""


class LearnerError(Exception):
    """The learner cannot start or go on; the message says why and what to do."""
