"""An agent that answers every rollout otherwise, and gives itself no reward."""

import random

import steady


def solve(task):
    """Ask what nobody asked before, so that the rollouts of a group differ."""
    return {"text": steady.solve({"question": f"{task['question']} {random.random()}"})["text"]}
