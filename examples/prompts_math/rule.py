"""What the agent is told, what it should be told, and what else a model may propose."""

SYSTEM = "You solve word problems with a calculator. At the end say answer: NUMBER"
"""The agent's own prompt. It lacks the rule."""
RULE = "Take every step before you answer."
OTHERS = (
    "Be brief.",
    "Think about the units.",
    "Be polite.",
    "Check the spelling of names.",
    "Read the problem twice.",
    "Use plain words.",
)
"""Sentences that change nothing."""
