"""The alerting rules for Prometheus: on metrics and labels that exist, with text that says what to do."""

import re

import pytest
import yaml

from lightningbus.common.observability.metric_registry import METRIC_DOCS
from tests.deploy.commands import DEPLOY, ROOT, Document

RULES_FILE = DEPLOY / "prometheus" / "lightningbus.rules.yaml"
(GROUP,) = yaml.safe_load(RULES_FILE.read_text())["groups"]
RULES: list[Document] = GROUP["rules"]
LABELS = {
    name: set(labels.rstrip("}").split(",")) if labels else set()
    for name, _, labels in (entry.name.partition("{") for entry in METRIC_DOCS)
}
"""The labels of each metric, without those of a scrape."""
FROM_SCRAPE = {"instance", "job"}


def test_every_name_is_of_one_rule() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names)) and all(name.startswith("Lightningbus") for name in names)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_metrics_that_exist_and_says_what_to_do(rule: Document) -> None:
    metrics = set(re.findall(r"lightningbus_\w+", rule["expr"]))
    assert metrics and metrics <= set(LABELS)
    labels = set.union(*(LABELS[metric] for metric in metrics)) | FROM_SCRAPE
    assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels
    assert set(re.findall(r"(?:by|on) \(([\w, ]+)\)", rule["expr"])) <= labels
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert all(rule["annotations"][field].endswith(".") for field in ("summary", "action"))


def test_a_counter_with_labels_also_fires_at_its_first_value() -> None:
    """It is absent until then, and `increase` of a series that begins is 0."""
    for rule in RULES:
        for metric in re.findall(r"increase\((lightningbus_\w+)\[", rule["expr"]):
            assert not LABELS[metric] or f"{metric} unless {metric} offset" in rule["expr"]


def test_the_page_says_how_to_load_them() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(rule_files.*?)```", page, re.S)]
    assert [block["rule_files"] for block in blocks] == [[RULES_FILE.name]]
