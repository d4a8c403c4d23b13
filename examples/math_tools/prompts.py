"""What the agent is told: in a file of its own, so that it can be read without the framework."""

import os

SYSTEM = os.environ.get("SYSTEM", "Use the calculator, one step at a time. Then say answer: NUMBER")
