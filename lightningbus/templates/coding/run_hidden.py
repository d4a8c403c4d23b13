"""Runs each hidden test in a process of its own, and writes the share that passed of those that asked for a change.

Tests that the untouched repository passes count for `solved` alone: a repository that an agent left as it was earns 0.

This program imports none of the code that it tests. A test has passed once its process says the word that it was given,
so code that ends its process early passes none. Bytecode that an agent left
is not read: it may be that of an older file, or of another.
"""

import ast
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).with_name("tests_of_task.py")
ORIGINAL = Path(__file__).with_name("original")
"""The repository as the agent found it."""
SECONDS = 10
ONE_TEST = """
import runpy, sys
word = sys.stdin.readline()
sys.path.insert(0, sys.argv[3])
runpy.run_path(sys.argv[1])[sys.argv[2]]()
sys.stdout.write("\\n" + word)
"""


def passes(name: str, repository: Path) -> bool:
    """Run one test of a repository; a test that hangs has failed."""
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as cache:
        options = ["-I", "-X", f"pycache_prefix={cache}"]
        command = [sys.executable, *options, "-c", ONE_TEST, str(TESTS), name, str(repository)]
        try:
            done = subprocess.run(
                command, input=f"{word}\n", stdout=subprocess.PIPE, text=True, errors="replace", timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return False
    return done.stdout.splitlines()[-1:] == [word]


functions = [node.name for node in ast.parse(TESTS.read_text()).body if isinstance(node, ast.FunctionDef)]
names = [name for name in functions if name.startswith("test_")]
passed = {name for name in names if passes(name, Path.cwd())}
failing = [name for name in names if not passes(name, ORIGINAL)] or names
rewards = {"tests_passed": len(passed.intersection(failing)) / len(failing), "solved": float(len(passed) == len(names))}
Path(os.environ["RESULT_FILE"]).write_text(json.dumps(rewards))
