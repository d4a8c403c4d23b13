"""Sizes of the streams, as settings: an unset one keeps its present or shipped size."""

from pydantic import BaseModel, ConfigDict, Field

from lightningbus.schemas import subjects

DEFAULT_MIB = {
    subjects.TASKS: 512,
    subjects.TRAIN_ROLLOUTS: 2048,
    subjects.EVAL_ROLLOUTS: 1024,
    subjects.EVENTS: 512,
    subjects.GRADING: 1024,
}
MAX_ACK_PENDING = 200_000
MIB = 1024 * 1024


class StreamSizes(BaseModel):
    """Bounds of the streams that publishers wait for, and of what the learner has not acknowledged yet."""

    model_config = ConfigDict(extra="forbid")

    tasks_mib: int | None = Field(
        default=None, ge=1, description="largest size of the queue of tasks, in MiB [as shipped: 512]"
    )
    train_rollouts_mib: int | None = Field(
        default=None,
        ge=1,
        description="largest size of unread training rollouts, in MiB; learners check it at start [as shipped: 2048]",
    )
    eval_rollouts_mib: int | None = Field(
        default=None, ge=1, description="largest size of unread evaluation rollouts, in MiB [as shipped: 1024]"
    )
    events_mib: int | None = Field(
        default=None, ge=1, description="largest size of records of tasks and training steps, in MiB [as shipped: 512]"
    )
    grading_mib: int | None = Field(
        default=None, ge=1, description="largest size of attempts that wait for graders, in MiB [as shipped: 1024]"
    )
    max_ack_pending: int | None = Field(
        default=None,
        ge=1,
        description="most span batches that a learner may hold before a checkpoint covers them [as shipped: 200000]",
    )

    def bytes_of(self, stream: str) -> int | None:
        """Return the size of a stream in bytes; None: it is not set."""
        mib = getattr(self, f"{stream.lower()}_mib", None)
        return mib * MIB if mib is not None else None

    @property
    def more_mib(self) -> int:
        """Additional MiB that all streams together may take, compared with their shipped sizes."""
        return sum(max(0, (self.bytes_of(name) or 0) // MIB - shipped) for name, shipped in DEFAULT_MIB.items())
