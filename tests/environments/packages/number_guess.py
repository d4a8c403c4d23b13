"""A text environment of Gymnasium: guess a number that the seed decides."""

from typing import Any

import gymnasium
from gymnasium import spaces


class NumberGuess(gymnasium.Env[str, str]):
    """Each wrong guess costs 0.1, the right one gives 1."""

    observation_space = spaces.Text(max_length=100)
    action_space = spaces.Text(max_length=100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._number = int(self.np_random.integers(1, 10))
        return "Guess a number from 1 to 9.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        guess = int(action)
        if guess == self._number:
            return "Right.", 1.0, True, False, {}
        return ("Too small." if guess < self._number else "Too large."), -0.1, False, False, {}


gymnasium.register("NumberGuess-v0", entry_point=NumberGuess, max_episode_steps=20)
