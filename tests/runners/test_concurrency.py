"""The number of rollouts that a runner runs at once by itself: found, followed, bounded, and not tossed about."""

import itertools
import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightningbus.runners.concurrency.cohort_meter import CohortMeter
from lightningbus.runners.concurrency.pressure import (
    FULL_NODES,
    NO_MEMORY,
    NUM_SAMPLES,
    Memory,
    NodeLoad,
    Pressure,
    find_fullest,
)
from lightningbus.runners.concurrency.search import FIRST_SLOTS, MAX_SLOTS, Cohort, SlotSearch
from tests.runners.simulated_runner import SimulatedRunner
from tests.runners.test_routing import node

MIB = 2**20


@settings(max_examples=40)
@given(knee=st.floats(3, 200), sigma=st.floats(0.05, 0.4), seed=st.integers(0, 10**6))
def test_it_settles_at_the_knee_and_does_not_oscillate(knee: float, sigma: float, seed: int) -> None:
    runner = SimulatedRunner(knee, sigma, seed)
    runner.slots_of(20)
    num_ended, now = runner.num_ended, runner.now
    slots = runner.slots_of(60)
    assert 0.75 * knee <= fmean(slots) <= 1.25 * knee
    assert min(slots) >= 0.4 * knee and max(slots) <= 1.8 * knee + 1
    assert (runner.num_ended - num_ended) / (runner.now - now) >= 0.85 * knee, "throughput that the search costs"
    assert sum(first != second for first, second in itertools.pairwise(slots)) <= 45, "it rests between trials"


def test_heavy_tails_do_not_keep_it_from_a_large_number() -> None:
    for seed in range(6):
        assert fmean(SimulatedRunner(math.inf, 1.3, seed).slots_of(60)[30:]) >= 128


def test_rollouts_that_end_at_a_deadline_do_not_keep_it_from_a_large_number() -> None:
    for seed in range(6):
        assert fmean(SimulatedRunner(math.inf, 0.3, seed, stuck=0.05, deadline=150.0).slots_of(30)[20:]) >= 128


@pytest.mark.parametrize("seed", range(12))
def test_with_heavy_tails_it_keeps_most_of_the_throughput(seed: int) -> None:
    runner = SimulatedRunner(64, 1.3, seed)
    runner.slots_of(20)
    num_ended, now = runner.num_ended, runner.now
    runner.slots_of(60)
    assert (runner.num_ended - num_ended) / (runner.now - now) >= 0.7 * 64


@settings(max_examples=20)
@given(knee=st.floats(8, 128), factor=st.sampled_from([0.5, 2.0]), seed=st.integers(0, 10**6))
def test_it_follows_a_machine_that_suddenly_does_half_or_twice_as_much(knee: float, factor: float, seed: int) -> None:
    runner = SimulatedRunner(knee, 0.2, seed)
    runner.slots_of(40)
    runner.knee = knee * factor
    runner.slots_of(40)
    assert 0.75 * runner.knee <= fmean(runner.slots_of(20)) <= 1.25 * runner.knee


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.floats(0.001, 1000),
            st.floats(0.01, 1),
            st.floats(0, 3),
            st.integers(0, 300),
            st.booleans(),
            st.booleans(),
        ),
        max_size=200,
    ),
    st.integers(1, MAX_SLOTS),
)
def test_whatever_is_measured_it_stays_between_one_and_its_bounds(
    looks: list[tuple[float, float, float, int, bool, bool]], max_slots: int
) -> None:
    search = SlotSearch(FIRST_SLOTS, max_slots)
    for seconds, share, error, num_more, is_pressed, fails in looks:
        before = search.num_slots
        if is_pressed:
            search.relieve("pressure")
            assert search.num_slots <= before and (search.num_slots < before or before == 1)
        else:
            search.decide(Cohort(seconds, max(1.0, share * before), error), num_more, "no room")
            assert search.num_slots <= before + num_more
        if fails and search.num_slots > before:
            search.withdraw(before, "no more agents can be started")
            assert search.num_slots <= before
        assert 1 <= search.num_slots <= max_slots


def test_without_room_it_stays_and_says_why() -> None:
    runner = SimulatedRunner(64, 0.2, 0)
    runner.room = 9
    assert max(runner.slots_of(30)) == 9
    assert fmean(runner.slots_of(20)) >= 8
    search = SlotSearch()
    search.decide(Cohort(1, 4), 0, "no room")
    assert (search.num_slots, search.reason) == (4, "no room")


def test_slots_that_no_task_uses_are_not_raised() -> None:
    runner = SimulatedRunner(64, 0.2, 0)
    runner.num_tasks = 5
    assert max(runner.slots_of(30)) == 8, "one trial of twice as many"
    assert max(runner.slots_of(30)) <= 6
    search = SlotSearch(10)
    search.decide(Cohort(1, 5), 99)
    assert (search.num_slots, search.reason) == (10, "not all slots are used")


def test_pressure_takes_a_quarter_at_once_and_room_lets_it_come_back() -> None:
    runner = SimulatedRunner(200, 0.1, 0)
    runner.slots_of(4)
    before = runner.search.num_slots
    runner.search.relieve("memory is short")
    assert (runner.search.num_slots, runner.search.reason) == (before * 3 // 4, "memory is short")
    assert max(runner.slots_of(20)) > before


def test_after_relief_slots_double_to_the_number_before_without_a_trial() -> None:
    runner = SimulatedRunner(200, 0.3, 0)
    runner.slots_of(20)
    before = runner.search.num_slots
    while runner.search.num_slots > 1:
        runner.search.relieve("memory is short")
    num_ended = runner.num_ended
    runner.slots_of(8)
    assert runner.search.num_slots >= 0.75 * before
    assert runner.num_ended - num_ended < 6 * before, "rollouts that it takes"


def test_fewer_slots_that_suffice_after_relief_are_kept() -> None:
    search = SlotSearch(16)
    search.relieve("memory is short")
    search.decide(Cohort(1, 12), 99)
    search.decide(Cohort(1, 16), 0)
    search.decide(Cohort(1, 16), 99)
    search.decide(Cohort(0.75, 12), 99)
    assert (search.num_slots, search.reason) == (12, "the same throughput with fewer")
    search.decide(Cohort(0.75, 12), 99)
    assert search.num_slots == 9, "a trial of still fewer"


def test_pressure_leaves_as_many_slots_as_it_says() -> None:
    search = SlotSearch(5)
    search.relieve("calls queue at the nodes", 4)
    search.relieve("calls queue at the nodes", 4)
    assert search.num_slots == 4


def test_doubling_takes_at_most_half_of_the_room() -> None:
    search = SlotSearch(16)
    search.decide(Cohort(1, 16), 10, "memory is short")
    assert search.num_slots == 21


def test_a_step_that_cannot_be_made_leaves_no_more_slots_than_are_open() -> None:
    search = SlotSearch(16)
    search.relieve("memory is short")
    search.decide(Cohort(1, 12), 99)
    assert search.num_slots == 16, "back without a trial"
    search.withdraw(12, "no more agents can be started")
    assert search.num_slots == 12


def test_steps_down_do_not_let_slots_double_again() -> None:
    search = SlotSearch(64)
    search.decide(Cohort(1, 64), 0)
    search.decide(Cohort(1, 64), 99)
    assert search.num_slots == 48
    search.decide(Cohort(0.75, 48), 99)
    search.decide(Cohort(0.75, 48), 99)
    seconds = 36 / 64
    search.decide(Cohort(seconds, 36), 99)
    search.decide(Cohort(seconds, 36), 99)
    assert (search.num_slots, search.reason) == (27, "trial of 27 after 36")
    search.decide(Cohort(seconds, 27), 99)
    search.decide(Cohort(seconds, 36), 99)
    search.decide(Cohort(seconds, 45), 99)
    assert (search.num_slots, search.reason) == (45, "more throughput")
    assert search.cohort_size == 64, "90 while slots double"


def test_runners_that_share_nodes_fill_them_together_and_queue_few_calls() -> None:
    """Throughput alone would let each grow at the cost of the others."""
    searches = [SlotSearch(first) for first in (4, 40)]
    seats = 64
    for _ in range(200):
        total = sum(search.num_slots for search in searches)
        for search in searches:
            if total > 1.25 * seats:
                search.relieve("calls queue at the nodes")
            else:
                speed = min(1.0, seats / total)
                search.decide(Cohort(1 / speed, search.num_slots), max(0, seats - total), "calls queue at the nodes")
    assert seats * 3 / 4 <= sum(search.num_slots for search in searches) <= 1.25 * seats


def test_rollouts_that_end_first_do_not_make_a_cohort_seem_fast() -> None:
    meter = CohortMeter()
    meter.restart(2)
    long, short, later = meter.begin(0.0), meter.begin(0.0), meter.begin(0.0)
    meter.end(short, 1.0, "whole")
    meter.end(later, 1.0, "whole")
    assert meter.measure(1.0) is None, "the long one of the first two is missing"
    meter.end(long, 9.0, "whole")
    cohort = meter.measure(9.0)
    assert cohort is not None
    assert cohort.seconds == pytest.approx(3.0) and cohort.num_running == pytest.approx((3 * 1 + 3 * 1 + 8 * 1) / 10)


def test_a_cohort_waits_for_no_rollout_that_takes_four_times_the_usual() -> None:
    meter = CohortMeter()
    meter.restart(4)
    members = [meter.begin(0.0) for _ in range(4)]
    for member in members[:3]:
        meter.end(member, 1.0, "whole")
    assert meter.measure(3.9) is None
    cohort = meter.measure(4.0)
    assert cohort is not None and cohort.seconds == pytest.approx(4 ** (1 / 4))


def test_a_cohort_of_which_a_deadline_cuts_off_half_gives_way_to_the_next() -> None:
    meter = CohortMeter()
    meter.restart(2)
    members = [meter.begin(0.0) for _ in range(2)]
    meter.end(members[0], 300.0, "cut off")
    meter.end(members[1], 300.0, "whole")
    assert meter.measure(9999.0) is None, "no usual duration is known"
    for member in [meter.begin(9999.0) for _ in range(2)]:
        meter.end(member, 10001.0, "whole")
    cohort = meter.measure(10001.0)
    assert cohort is not None and cohort.seconds == pytest.approx(2.0)


def test_rollouts_that_a_deadline_cuts_off_count_as_long_and_not_as_their_deadline() -> None:
    meter = CohortMeter()
    for seconds in (0.5, 300.0):
        meter.restart(4)
        members = [meter.begin(0.0) for _ in range(4)]
        for member in members[:3]:
            meter.end(member, 1.0, "whole")
        meter.end(members[3], seconds, "cut off")
        cohort = meter.measure(seconds)
        assert cohort is not None and cohort.seconds == pytest.approx(4 ** (1 / 4))


def test_a_rollout_that_fails_early_leaves_its_place_to_another() -> None:
    meter = CohortMeter()
    meter.restart(1)
    meter.end(meter.begin(0.0), 0.1, "failed")
    assert meter.measure(0.1) is None
    meter.end(meter.begin(1.0), 3.0, "whole")
    cohort = meter.measure(3.0)
    assert cohort is not None and (cohort.seconds, cohort.num_running) == (pytest.approx(2.0), 1.0)


def test_a_rollout_from_before_counts_as_running_and_not_as_measured() -> None:
    meter = CohortMeter()
    before = meter.begin(0.0)
    meter.restart(1)
    number = meter.begin(1.0)
    meter.end(before, 2.0, "whole")
    assert meter.measure(2.0) is None
    meter.end(number, 3.0, "whole")
    cohort = meter.measure(3.0)
    assert cohort is not None and (cohort.seconds, cohort.num_running) == (pytest.approx(2.0), 1.5)


def test_memory_bounds_further_slots_by_what_one_takes() -> None:
    assert Memory(1000 * MIB, 2000 * MIB).count_more(0) == 6, "128 MiB each, less a tenth of all"
    assert Memory(1000 * MIB, 2000 * MIB).count_more(200 * MIB) == 2, "a half more than one takes now"
    assert Memory(100 * MIB, 2000 * MIB).count_more(0) == 0
    assert not Memory(100 * MIB, 2000 * MIB).is_full and Memory(50 * MIB, 2000 * MIB).is_full


def test_the_fullest_model_among_the_nodes_that_are_called_counts() -> None:
    nodes = [
        node("a", inflight=60, max_num_seqs=64),
        node("b", inflight=68, max_num_seqs=64),
        node("c", inflight=900, max_num_seqs=1),
        node("d", "draining", inflight=900, max_num_seqs=1),
        node("old", inflight=900),
    ]
    assert find_fullest(nodes, {"a", "b", "d", "old"}) == NodeLoad(128, 128)
    assert find_fullest(nodes, set()) is None


def test_a_short_queue_at_the_nodes_is_no_pressure_and_a_lasting_one_is() -> None:
    pressure, memory = Pressure(), Memory(1000 * MIB, 2000 * MIB)
    for _ in range(NUM_SAMPLES - 1):
        pressure.add(memory, NodeLoad(100, 64))
    pressure.add(memory, NodeLoad(64, 64))
    assert pressure.sign == ""
    for _ in range(NUM_SAMPLES):
        pressure.add(memory, NodeLoad(100, 64))
    assert pressure.sign == FULL_NODES and pressure.find_room(99) == (0, FULL_NODES)
    pressure.clear_nodes()
    assert pressure.sign == "" and pressure.find_room(99) == (6, NO_MEMORY)
    pressure.add(memory, NodeLoad(61, 64))
    assert pressure.find_room(99) == (3, FULL_NODES)
    pressure.add(Memory(10 * MIB, 2000 * MIB), None)
    assert pressure.sign == NO_MEMORY


def test_nothing_that_is_unknown_is_pressure() -> None:
    pressure = Pressure()
    pressure.add(None, None)
    assert pressure.sign == "" and pressure.find_room(99) == (99, "")
