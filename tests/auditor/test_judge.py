"""From evidence to verdicts, and what these quarantine."""

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from lightningbus.auditor.evidence import AuditedTokens, Finding
from lightningbus.auditor.judge import Judge, verdicts_on
from lightningbus.auditor.settings import AuditorSettings
from lightningbus.schemas.audits.events import AuditState, AuditVerdict
from lightningbus.schemas.audits.quarantine import add_verdict, applies_to, find_verdict
from lightningbus.schemas.spans import VersionSpan
from tests.factories import model_call

FINDING = Finding(log_evidence=25.0, onset_version=5, num_tokens=40, reason="it differs")
RANKS = np.random.default_rng(1).random(40)
WRONG, RIGHT = AuditedTokens(np.full(40, 0.5), RANKS), AuditedTokens(np.zeros(40), RANKS)


def test_evidence_is_kept_by_engine() -> None:
    judge = Judge(AuditorSettings(model_path=Path("m")), 0.01)
    assert not judge.is_guilty(judge.add("n:1", 3, RIGHT))
    assert judge.is_guilty(judge.add("n:2", 3, WRONG))
    assert judge.suspects() == {"n:2"}
    judge.forget("n:2")
    assert judge.suspects() == frozenset()


def test_an_engine_is_convicted_first() -> None:
    (verdict,) = verdicts_on("n:1", 7, FINDING, [], 1)
    assert (verdict.engine_id, verdict.version, verdict.failed_version) == ("n:1", 5, 7)
    assert verdicts_on("n:1", 8, FINDING, [verdict], 1) == [], "it is convicted already"


def test_a_version_that_fails_on_two_engines_is_convicted_too() -> None:
    (first,) = verdicts_on("n:1", 7, FINDING, [], 1)
    engine, version = verdicts_on("n:2", 7, FINDING, [first], 2)
    assert engine.engine_id == "n:2"
    assert (version.engine_id, version.version) == ("", 7)
    assert "n:1" in version.reason and "n:2" in version.reason
    (other,) = verdicts_on("n:2", 8, FINDING, [first], 2)
    assert other.engine_id == "n:2", "another version has not failed before"


def verdict(engine_id: str, version: int) -> AuditVerdict:
    return AuditVerdict(
        engine_id=engine_id, version=version, failed_version=version, reason="r", num_tokens=1, evidence=30,
        decided_at_ns=1,
    )  # fmt: skip


def test_what_a_verdict_applies_to() -> None:
    assert applies_to(verdict("n:1", 5), "n:1", 5)
    assert applies_to(verdict("n:1", 5), "n:1", 6)
    assert not applies_to(verdict("n:1", 5), "n:1", 4)
    assert not applies_to(verdict("n:1", 5), "n:2", 5)
    assert applies_to(verdict("", 5), "n:2", 5)
    assert not applies_to(verdict("", 5), "n:2", 6)


def test_one_token_of_an_answer_is_enough() -> None:
    runs = (
        VersionSpan(version=5, start=0, end=1, engine_id="n:1"),
        VersionSpan(version=5, start=1, end=2, engine_id="n:2"),
    )
    call = model_call(0, [1], [2, 3])
    resumed = type(call)(**{**{name: getattr(call, name) for name in call.__struct_fields__}, "weight_versions": runs})
    assert find_verdict([call, resumed], [verdict("n:2", 5)]) is not None
    assert find_verdict([call, resumed], [verdict("n:3", 0)]) is None


def test_a_verdict_that_is_overturned_does_not_hold_until_the_next() -> None:
    call = model_call(0, [1], [2], version=6)
    runs = (VersionSpan(version=6, start=0, end=1, engine_id="n:1"),)
    call = replace(call, weight_versions=runs)
    convicted, overturned = verdict("n:1", 5), replace(verdict("n:1", 5), action="overturned")
    assert find_verdict([call], [convicted]) == convicted
    assert find_verdict([call], [convicted, overturned]) is None
    assert find_verdict([call], [convicted, verdict("", 6), overturned]) == verdict("", 6), "the version's stands"
    assert find_verdict([call], [convicted, overturned, convicted]) == convicted
    assert [each.engine_id for each in verdicts_on("n:1", 6, FINDING, [convicted, overturned], 1)] == ["n:1"]


def test_old_verdicts_give_way() -> None:
    state = AuditState(model="policy")
    for number in range(300):
        state = add_verdict(state, verdict(f"n:{number}", 0))
    assert len(state.verdicts) == 200 and state.verdicts[-1].engine_id == "n:299"
