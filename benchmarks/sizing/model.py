"""The system as stations with a capacity each, and a simulation of its slots over time. Pure, by a seed.

A rollout is turns of thinking (tools, the agent itself) and a model call each. What it costs the broker, the store and
its runner is CPU seconds and bytes, which do not depend on how busy they are; what it waits for is nodes and tools.
"""

from dataclasses import dataclass, field, replace

import numpy as np

HEARTBEATS = 1.0
"""Of every process, a second."""
RENEWALS = 3.0
"""Of a lease, in its ``ack_wait``."""


@dataclass(frozen=True)
class Load:
    """What is to be done, and by how many."""

    tasks: int = 1_000_000
    runners: int = 10_000
    slots: int = 4
    """Rollouts at once, of each runner."""
    turns: float = 4.0
    prompt_tokens: float = 300.0
    """New ones of each turn."""
    response_tokens: float = 200.0
    """Sampled in each turn."""
    tool_seconds: float = 5.0
    """Of each turn: what the agent does before it asks."""
    ack_wait: float = 30.0

    @property
    def tokens(self) -> float:
        """Of a rollout: each prompt counted once, as they are kept and trained on."""
        return self.turns * (self.prompt_tokens + self.response_tokens)


@dataclass(frozen=True)
class Plant:
    """What there is; the speeds of models are given, not measured, for they are those of your GPUs."""

    nodes: int = 64
    node_tokens: float = 5_000.0
    """Sampled a second by one node, over all its calls."""
    call_tokens: float = 60.0
    """Sampled a second in one call, at most."""
    learner_gpus: int = 64
    gpu_tokens: float = 12_500.0
    """Trained on a second by each of the learner's."""
    ahead: int = 65_536
    """Rollouts that may be begun and not yet trained on: `max_staleness` steps and one more."""
    broker_cores: float = 8.0
    ingesters: int = 4
    store_cores: float = 2.0
    """One ingester uses: one reads and makes columns, one inserts."""
    listeners: int = 5
    """Processes that hear every heartbeat: ingesters, and whoever watches."""
    span_bytes: float = 2_147_483_648.0
    """Room of TRAIN_ROLLOUTS."""
    core_hour: float = 0.04
    gpu_hour: float = 2.50
    disk_gb_month: float = 0.10


@dataclass(frozen=True)
class Fit:
    """Something of a rollout: so much, so much of each turn, and of each token."""

    rollout: float
    turn: float
    token: float

    def of(self, load: Load) -> float:
        """Of one rollout."""
        return self.rollout + self.turn * load.turns + self.token * load.tokens


@dataclass(frozen=True)
class Costs:
    """What was measured; seconds are of CPU."""

    bus_bytes: Fit
    disk_bytes: Fit
    store_seconds: Fit
    broker_rollout: float
    """A task published, given to a runner and settled, and its spans published and given to a store and a learner."""
    broker_byte: float
    waiting_runner: float
    """A runner that waits, a second: its heartbeat, and its request for tasks."""
    heartbeat_delivery: float
    """A heartbeat given to one who listens."""
    beat: float
    """A heartbeat read by one who knows ten thousand."""
    runner_rollout: float
    runner_turn: float


@dataclass(frozen=True)
class Station:
    """One that can be full: ``demand`` of ``capacity`` a second."""

    name: str
    demand: float
    capacity: float
    unit: str

    @property
    def share(self) -> float:
        """1: full."""
        return self.demand / self.capacity


def stations(load: Load, plant: Plant, costs: Costs, rate: float) -> list[Station]:
    """What ``rate`` rollouts a second ask of everything, the fullest first."""
    running = min(rate * residence(load, plant), load.runners * load.slots)
    num_deliveries = load.runners * plant.nodes + (load.runners + plant.nodes) * plant.listeners
    heartbeats = HEARTBEATS * (
        (load.runners + plant.nodes) * costs.waiting_runner + num_deliveries * costs.heartbeat_delivery
    )
    leases = (
        running * RENEWALS / load.ack_wait * (costs.waiting_runner + costs.heartbeat_delivery)
    )  # a message, and its answer
    rollouts = rate * (costs.broker_rollout + costs.broker_byte * costs.bus_bytes.of(load))
    loads = [
        Station("broker: heartbeats", heartbeats, plant.broker_cores, "cores"),
        Station("broker: leases", leases, plant.broker_cores, "cores"),
        Station("broker: tasks and spans", rollouts, plant.broker_cores, "cores"),
        Station("broker: all", heartbeats + leases + rollouts, plant.broker_cores, "cores"),
        Station("store: inserts", rate * costs.store_seconds.of(load), plant.ingesters * plant.store_cores, "cores"),
        Station("store: heartbeats", HEARTBEATS * (load.runners + plant.nodes) * costs.beat, 1.0, "cores of each"),
        Station("nodes", rate * load.turns * load.response_tokens, plant.nodes * plant.node_tokens, "tokens/s"),
        Station("learner", rate * load.tokens, plant.learner_gpus * plant.gpu_tokens, "tokens/s"),
        Station("runner", runner_seconds(load, plant, costs, rate), 1.0, "cores of each"),
    ]
    return sorted(loads, key=lambda item: -item.share)


def runner_seconds(load: Load, plant: Plant, costs: Costs, rate: float) -> float:
    """CPU seconds a second of one runner: its rollouts, and the heartbeats of all nodes."""
    return rate / load.runners * (costs.runner_rollout + costs.runner_turn * load.turns) + plant.nodes * costs.beat


def residence(load: Load, plant: Plant) -> float:
    """Seconds of a rollout where nobody waits for a node."""
    return load.turns * (load.tool_seconds + load.response_tokens / plant.call_tokens)


@dataclass
class Run:
    """What came of it, a point each ``every`` seconds."""

    every: float
    done: int = 0
    took: float = 0.0
    seconds: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    """Rollouts that ended, a second."""
    calls: list[float] = field(default_factory=list)
    """Model calls open."""
    speed: list[float] = field(default_factory=list)
    """Tokens a second of one of them."""
    unread: list[float] = field(default_factory=list)
    """Bytes of rollouts that the store has not taken."""
    untrained: list[float] = field(default_factory=list)
    """Rollouts that have ended and the learner has not taken."""

    @property
    def whole(self) -> float:
        """Rollouts a second, from the first task to the last rollout."""
        return self.done / self.took

    @property
    def steady(self) -> float:
        """Rollouts a second in the middle half of the time."""
        quarter = len(self.rate) // 4
        return float(np.mean(self.rate[quarter : -quarter or None]))


def simulate(load: Load, plant: Plant, costs: Costs, step: float = 1.0, seed: int = 0, spread: bool = True) -> Run:
    """Every slot through its rollouts until all tasks are done, in steps of so many seconds.

    Nodes share their tokens among all open calls. Broker and store do what their cores allow: who has ended waits until
    the broker has it. A full stream makes it wait for the store. Tasks come as the learner admits them.
    Without ``spread`` all rollouts are alike.
    """
    chance = np.random.default_rng(seed)

    def long(mean: float, count: int) -> np.ndarray:
        """Times and lengths as they are met: most are short, some long."""
        return chance.gamma(2.0, mean / 2.0, count) if spread else np.full(count, mean)

    slots = load.runners * load.slots
    waiting = load.tasks
    turns = np.zeros(slots, np.int32)  # left, of the rollout in a slot; 0: none
    thinking, asking = np.zeros(slots), np.zeros(slots)  # seconds, and tokens, left
    ended = np.zeros(slots, bool)  # not yet taken by the broker
    size, cpu = costs.bus_bytes.of(load), costs.store_seconds.of(load)
    idle_share = sum(
        station.demand for station in stations(load, plant, costs, 0.0) if station.name == "broker: heartbeats"
    )
    broker = max(plant.broker_cores - idle_share, 0.0) / (costs.broker_rollout + costs.broker_byte * size)
    store = plant.ingesters * plant.store_cores / cpu
    learner = plant.learner_gpus * plant.gpu_tokens / load.tokens
    unread = untrained = 0.0
    done = 0
    run, now, since, before = Run(max(1.0, step)), 0.0, 0.0, 0
    while done < load.tasks:
        now += step
        free = np.flatnonzero((turns == 0) & ~ended)
        admitted = plant.ahead - (slots - len(free)) - untrained
        free = free[: max(int(min(waiting, admitted, broker * step + 1)), 0)]
        waiting -= len(free)
        turns[free] = 1 + (chance.poisson(load.turns - 1, len(free)) if spread else round(load.turns) - 1)
        thinking[free] = long(load.tool_seconds, len(free))
        at_work = turns > 0
        thinks = at_work & (asking == 0)
        thinking[thinks] -= step
        begins = np.flatnonzero(thinks & (thinking <= 0))
        asking[begins] = np.maximum(long(load.response_tokens, len(begins)), 1.0)
        speed = _speed(plant, int(np.count_nonzero(asking)))
        asks = np.flatnonzero(asking)
        worked = np.full(len(asks), step)
        new = thinking[asks] < 0  # what was left of the step when the call began
        worked[new] = np.minimum(-thinking[asks][new], step)
        asking[asks] -= worked * speed
        thinking[asks] = 0.0
        over = asks[asking[asks] <= 0]
        spare = -asking[over] / speed
        asking[over] = 0.0
        turns[over] -= 1
        thinking[over] = np.where(turns[over] > 0, long(load.tool_seconds, len(over)) - spare, 0.0)
        ended[over[turns[over] == 0]] = True
        room = max(plant.span_bytes - unread, 0.0) / size
        taken = np.flatnonzero(ended)[: int(min(room, broker * step + 1))]
        ended[taken] = False
        done += len(taken)
        unread = max(unread + len(taken) * size - store * step * size, 0.0)
        untrained = max(untrained + len(taken) - learner * step, 0.0)
        if now - since >= run.every - step / 2:
            run.seconds.append(now)
            run.rate.append((done - before) / (now - since))
            run.calls.append(float(np.count_nonzero(asking)))
            run.speed.append(speed)
            run.unread.append(unread)
            run.untrained.append(untrained)
            since, before = now, done
    run.done, run.took = done, now
    return run


def _speed(plant: Plant, calls: int) -> float:
    return min(plant.call_tokens, plant.nodes * plant.node_tokens / max(calls, 1))


def full_at(load: Load, plant: Plant, costs: Costs, name: str) -> float:
    """How many runners fill a station if all slots are busy, nothing else is full, and nodes grow with the runners."""
    low, high = 1.0, 1e7
    for _ in range(50):
        middle = (low * high) ** 0.5
        local = replace(load, runners=max(1, round(middle)))
        grown = plant if name == "nodes" else replace(plant, nodes=max(1, round(plant.nodes * middle / load.runners)))
        loads = stations(local, grown, costs, local.runners * local.slots / residence(local, grown))
        share = next(item.share for item in loads if item.name == name)
        low, high = (middle, high) if share < 1 else (low, middle)
    return low
