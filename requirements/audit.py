"""Audit a lock by pip-audit, and never take what was not looked up for what is clean: ``audit.py LOCK``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FOUND, UNKNOWN = 1, 3
"""Exit codes: a known vulnerability; packages that could not be looked up."""


def verdict(report: dict[str, Any]) -> tuple[int, str]:
    """Sum up pip-audit's JSON report as an exit code and a sentence. Pure."""
    packages = report["dependencies"]
    skipped = [package for package in packages if "skip_reason" in package]
    vulnerable = [f"{package['name']} {package['version']}" for package in packages if package.get("vulns")]
    looked_up = f"{len(packages) - len(skipped)} of {len(packages)} packages were looked up"
    if vulnerable:
        return FOUND, f"known vulnerabilities in {', '.join(vulnerable)}; {looked_up}"
    if skipped or not packages:
        reason = f", for one: {skipped[0]['skip_reason']}" if skipped else ""
        return UNKNOWN, f"not audited: {looked_up}{reason}"
    return 0, f"no known vulnerability; {looked_up}"


def main(lock: str) -> int:
    """Run pip-audit on a lock with hashes, and print the result."""
    program = Path(sys.executable).with_name("pip-audit")
    command = [program, "--disable-pip", "--require-hashes", "--requirement", lock, "--format", "json"]
    done = subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False)
    try:
        code, sentence = verdict(json.loads(done.stdout))
    except ValueError:  # it ended without a report
        words = done.stderr.strip().splitlines() or ["no output"]
        code, sentence = UNKNOWN, f"not audited: pip-audit ended with {done.returncode}: {words[-1]}"
    print(f"{lock}: {sentence}")
    if code == FOUND:
        print(done.stdout)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
