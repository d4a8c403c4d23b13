"""What the pages for operators say: every metric, and commands that are ours or say what they need."""

import re
import shlex

import pytest
from prometheus_client import Counter, Gauge, Histogram

from bus import measuring, metrics
from bus.measuring import ENTRIES
from tests.deploy.commands import ROOT, Commands

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text()
ELSEWHERE = {"docker": "# needs Docker", "kubectl": "# needs a cluster"}
ANYWHERE = {"curl", "make", "export"}


def test_every_metric_is_in_the_page_as_the_registry_has_it() -> None:
    found = re.search(r"<!-- metrics: begin -->\n(.*)\n<!-- metrics: end -->", OPERATIONS, re.S)
    assert found is not None
    assert found[1] == measuring.table(), "python -c 'from bus.measuring import table; print(table())' prints it"
    for entry in ENTRIES:
        assert entry.name.startswith("lightningbus_") and entry.moves.endswith(".") and entry.act.endswith(".")
    assert (
        len(ENTRIES)
        == len({entry.name for entry in ENTRIES})
        == sum(isinstance(one, Counter | Gauge | Histogram) for one in vars(metrics).values())
    )


@pytest.mark.parametrize("page", [OPERATIONS, DEPLOYMENT], ids=["operations", "deployment"])
def test_every_command_of_a_page_is_ours_or_says_what_it_needs(page: str, commands: Commands) -> None:
    ours = 0
    for block in re.findall(r"```sh\n(.*?)```", page, re.S):
        lines = [line for line in block.splitlines() if line.strip()]
        for line in lines:
            words = shlex.split(line, comments=True)
            if not words or words[0] in ANYWHERE:
                continue
            if words[0] in ELSEWHERE:
                assert lines[0] == ELSEWHERE[words[0]], line
                continue
            assert words[0] == "lightningbus", line
            commands.begun(words[1:], {})
            ours += 1
    assert ours >= 2
