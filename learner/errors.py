"""What ends a learner with a sentence."""


class CannotLearn(Exception):
    """The learner cannot start or go on; the message says why and what to do."""
