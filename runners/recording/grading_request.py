"""The request for a grade that ends a runner's work on an attempt. Pure."""

from msgspec.structs import replace

from lightningbus.schemas.codec import EncodeError, EncodeTooLargeError, encode
from lightningbus.schemas.grading import GradingRequest
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.tasks import Task, TaskIdentity


def build_grading_request(task: TaskIdentity, ending: SpanBatch, request: str, response: str) -> GradingRequest:
    """Build the request; one that is too large for a message is sent without what makes it so."""
    whole = GradingRequest(ending=ending, request=request, response=response)
    if isinstance(task, Task):
        whole = replace(whole, input=task.input, labels=task.labels)
    try:
        encode(whole)
    except EncodeTooLargeError:
        return _shorten(whole)
    except EncodeError as error:
        return replace(whole, input=None, problem=f"its task cannot be written: {error}")
    return whole


def _shorten(whole: GradingRequest) -> GradingRequest:
    """Leave out the conversation; without the task's input there is nothing to grade."""
    shorter = replace(whole, request="", response="")
    try:
        encode(shorter)
    except EncodeError as error:
        return replace(shorter, input=None, problem=f"its task is too large: {error}")
    return shorter
