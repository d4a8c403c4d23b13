"""Steps of ``make gpu`` beside the training steps: each measures in a process of its own."""
