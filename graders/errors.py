"""Errors of graders."""


class GraderError(Exception):
    """The grader cannot go on; the message says what to do."""


class GradingFailedError(Exception):
    """A rollout cannot be graded; the message gives the reason. Another try would fail too."""


class UnusableGradeError(Exception):
    """A grader gave no usable grade this time; the message gives the reason."""
