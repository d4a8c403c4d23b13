"""Split of a batch into mini-batches, one for each optimiser step. Pure."""

from lightningbus.learner.batching.batch import Batch


def split_mini_batches(batch: Batch, size: int | None) -> list[list[int]]:
    """Return the sequences' indices for each optimiser step: ``size`` whole groups, as verl's ``ppo_mini_batch_size``.

    Without a ``size`` all groups form one mini-batch.
    """
    task_ids = {disposition.rollout_id: disposition.task_id for disposition in batch.dispositions}
    groups = [task_ids.get(sequence.rollout_id, sequence.rollout_id) for sequence in batch.sequences]
    size = size or len(groups)
    number = {group: number // size for number, group in enumerate(dict.fromkeys(groups))}
    mini_batches: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        mini_batches.setdefault(number[group], []).append(index)
    return list(mini_batches.values())
