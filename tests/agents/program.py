"""An agent that is a program: task on standard input, result on standard output."""

import json
import sys

task = json.load(sys.stdin)
print("this goes nowhere that matters", file=sys.stderr)
json.dump({"reward": task["n"]}, sys.stdout)
