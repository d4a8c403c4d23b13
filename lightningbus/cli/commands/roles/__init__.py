"""Commands that run one role."""
