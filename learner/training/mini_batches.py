"""Split of a batch into mini-batches, one for each optimiser step. Pure."""

from lightningbus.learner.batching.batch import Batch


def split_mini_batches(batch: Batch, size: int | None) -> list[list[int]]:
    """Return the sequences' indices for each optimiser step: ``size`` whole groups, as verl's ``ppo_mini_batch_size``.

    Without a ``size`` all groups form one mini-batch. What is imitated beside groups is spread over their mini-batches;
    alone, each demonstration counts as a group.
    """
    task_ids = {disposition.rollout_id: disposition.task_id for disposition in batch.dispositions}
    groups = [task_ids.get(sequence.rollout_id, sequence.rollout_id) for sequence in batch.sequences]
    sampled = {sequence.rollout_id for sequence in batch.sequences} & task_ids.keys() or set(groups)
    counted = list(
        dict.fromkeys(group for group, row in zip(groups, batch.sequences, strict=True) if row.rollout_id in sampled)
    )
    others = [group for group in dict.fromkeys(groups) if group not in set(counted)]
    size = size or len(groups)
    num_parts = -(-len(counted) // size)
    number = {group: place // size for place, group in enumerate(counted)}
    number |= {group: place % num_parts for place, group in enumerate(others)}
    mini_batches: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        mini_batches.setdefault(number[group], []).append(index)
    return list(mini_batches.values())
