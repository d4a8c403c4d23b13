"""The checked computation of a model, beside the checkpoints: a learner that goes on need not check it again."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version

from lightningbus.learner.model_check.probe import LENGTHS, LONG, MAX_LENGTH, NUM_LONG_TOKENS
from lightningbus.learner.settings.learner import LearnerSettings

FILE = "model_check.json"
PACKAGES = ("torch", "transformers", "verl")


@dataclass(frozen=True, slots=True)
class CheckedComputation:
    """The right computation of a model, and the mean differences in nats per token that bfloat16 makes to its rows.

    ``shares_prefixes``: common beginnings of rows are computed once.
    """

    attention: str
    is_packed: bool
    shares_prefixes: bool
    roundings: list[float]
    vocabulary_size: int


def read_computation(settings: LearnerSettings) -> CheckedComputation | None:
    """Read what was checked with the same model, settings and packages; None: nothing."""
    try:
        fields = json.loads((settings.checkpoint_dir / FILE).read_text("utf-8"))
        return CheckedComputation(**fields["computation"]) if fields["of"] == _fingerprint(settings) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_computation(settings: LearnerSettings, checked: CheckedComputation) -> None:
    """Keep what was checked; raises OSError."""
    settings.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    path, temporary = settings.checkpoint_dir / FILE, settings.checkpoint_dir / f".{FILE}"
    temporary.write_text(json.dumps({"of": _fingerprint(settings), "computation": asdict(checked)}), "utf-8")
    temporary.replace(path)


def _fingerprint(settings: LearnerSettings) -> str:
    probe = f"{settings.seq_len} {LENGTHS} {NUM_LONG_TOKENS} {LONG} {MAX_LENGTH}"
    parts = [settings.engine.model_dump_json(), probe, *(f"{name} {version(name)}" for name in PACKAGES)]
    config = (settings.model_path / "config.json").read_bytes()
    return sha256(b"\0".join([config, *(part.encode() for part in parts)])).hexdigest()
