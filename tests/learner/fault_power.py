"""Measure the probability that the model check finds a fault of an engine's computation.

``python -m tests.learner.fault_power MODEL`` prints a table for docs/models.md. The engine is transformers' model with
the fault, by sdpa, in float32 and in bfloat16. A probe's rows are drawn from a text four times as long, 1,000 times.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lightningbus.learner.model_check.agreement import (
    find_engine_tolerance,
    find_log_prob_fault,
    find_tolerance,
    mean_difference,
)
from lightningbus.learner.model_check.probe import LONG, NUM_LONG_TOKENS, make_text_rows
from lightningbus.learner.model_check.reference import SDPA, Computation, ReferenceModel
from lightningbus.learner.trainer import Floats
from lightningbus.learner.transitions.sequences import TrainSequence
from tests.learner.computation_faults import FAULTS, make_faulty

NUM_ROWS = NUM_LONG_TOKENS // LONG
NUM_DRAWS = 1000
ENGINE = Computation(SDPA, is_packed=False)


def count_found(engine: Sequence[Floats], right: Sequence[Floats], rows: Sequence[TrainSequence], bound: float) -> int:
    """Return in how many of `NUM_DRAWS` draws of rows the check finds a fault."""
    random = np.random.default_rng(0)
    num_found = 0
    for _ in range(NUM_DRAWS):
        draw = random.choice(len(rows), NUM_ROWS, replace=False)
        values, others, drawn = [engine[i] for i in draw], [right[i] for i in draw], [rows[i] for i in draw]
        num_found += bool(find_log_prob_fault(values, others, drawn, bound))
    return num_found


def main(model: Path) -> None:
    """Print the table of a model."""
    import torch

    reference = ReferenceModel(model)
    rows = make_text_rows(model, reference.vocabulary_size, [LONG] * (4 * NUM_ROWS))
    right = reference.log_probs(rows)
    rounding = mean_difference(reference.rounded_log_probs(rows), right)
    print(f"Rounding to bfloat16 makes {rounding:.3g} nats per token.\n")
    print("| fault | float32: nats per token | found | bfloat16: nats per token | found |\n|---|---|---|---|---|")
    bounds = {torch.float32: find_engine_tolerance(rounding), torch.bfloat16: find_tolerance(rounding, num_rounded=1)}
    for name, fault in {"none": lambda model: None, **FAULTS}.items():
        cells = []
        for dtype, bound in bounds.items():
            engine = ReferenceModel(model)
            make_faulty(engine, fault)
            engine._model.to(dtype)
            values = engine.compute(rows, ENGINE)
            share = count_found(values, right, rows, bound) / NUM_DRAWS
            cells += [f"{mean_difference(values, right):.2g}", f"{share:.3g}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
