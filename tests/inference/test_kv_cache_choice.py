"""Whether a swap keeps the KV cache of requests in flight."""

import pytest

from lightningbus.inference.weights.kv_cache import KvCacheChoice
from lightningbus.inference.weights.plan import PendingUpdate, find_change
from lightningbus.schemas.weights.events import WeightManifest


def update(version: int, parent: int | None, change: float | None = 0.001) -> PendingUpdate:
    manifest = WeightManifest(
        run_id="r", model="m", version=version, parent=parent, change=change, blobs=(), epoch=1, step=version,
        created_at_ns=1,
    )  # fmt: skip
    return PendingUpdate(manifest, is_canary=False)


def test_auto_keeps_the_cache_until_the_changes_add_up() -> None:
    choice = KvCacheChoice("auto", 0.01)
    assert [choice.record_swap(0.004) for _ in range(6)] == ["kept", "kept", "recomputed"] * 2


@pytest.mark.parametrize("change", [None, 0.02])
def test_auto_recomputes_after_a_large_or_unknown_change(change: float | None) -> None:
    choice = KvCacheChoice("auto", 0.01)
    assert [choice.record_swap(0.009), choice.record_swap(change)] == ["kept", "recomputed"]
    assert choice.record_swap(0.009) == "kept", "what was computed again has not moved yet"


@pytest.mark.parametrize("change", [None, 0.0, 1.0])
def test_a_fixed_policy_asks_for_no_change(change: float | None) -> None:
    assert KvCacheChoice("keep", 0.01).record_swap(change) == "kept"
    assert KvCacheChoice("recompute", 0.01).record_swap(change) == "recomputed"


def test_a_change_is_known_only_from_the_version_that_is_loaded() -> None:
    assert find_change(update(3, parent=2), update(2, parent=1)) == 0.001
    assert find_change(update(4, parent=3), update(2, parent=1)) is None, "version 3 was skipped"
    assert find_change(update(2, parent=1), update(3, parent=2)) is None, "back to an older version"
    assert find_change(update(0, parent=None), None) is None
