"""The scenarios: a running system, its faults, and the verdict."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from lightningbus.bus.embedded.nats_server import NatsServer, free_port
from lightningbus.common.aio import first_completed
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.run.evaluation.request import expand_samples
from lightningbus.tasks.task_loading import TaskInput
from tests.chaos import absence, faults, state_loss
from tests.chaos.at_work import FINISH_SECONDS, at_work, small_disk, steps_for
from tests.chaos.failing_agents import no_calls, task_sets
from tests.chaos.failover import failover_back
from tests.chaos.faults import Log
from tests.chaos.oracle import Verdict, judge
from tests.chaos.report import Report
from tests.chaos.running_system import GROUPS, RUN, SAMPLES, grader_child, run_system, teacher_child
from tests.chaos.soak import Resources, find_slopes
from tests.chaos.teaching import examine_teaching

Scenario = Callable[[Path, Report, random.Random, int, int], Awaitable[None]]
DISK_MIB = 96
STORE_DISK_MIB = 256
STALL_SECONDS = 10.0
ABSENCE_STEPS, BUS_LOSS_STEPS = 12, 12
RESTART_STEPS, RESTART_BOUND, RESTART_GROUPS, RESTART_SAMPLES = 16, 1, 2, 4
TEACHERS_STEPS, TEACHERS_BOUND, TEACHERS_GROUPS, TEACHERS_SAMPLES = 12, 2, 2, 4
TEACHER_SECONDS = 0.2
TWO_LEARNERS_STEPS, STEPS_ALONE = 12, 3
SOAK_ROLLOUTS, SOAK_STEPS = 20_000, 16
SOAK_MIB, SOAK_DESCRIPTORS, SOAK_DISK_KIB = 100.0, 40, 40.0


async def random_kills(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """``kill -9`` over everything."""
    async with at_work(place, report, "kills", steps_for(rollouts), 0.05) as (system, log):
        await faults.kills(system, log, rng, kills, rollouts)


async def standstills(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """SIGSTOP, and clocks that are wrong."""
    async with at_work(place, report, "standstills", steps_for(rollouts), 0.1) as (system, log):
        for target, hours in (("runner-0", -1), ("store", 1), ("inference-0", 1), ("learner", -1)):
            await faults.clock(system, log, target, hours)
        await faults.stops(system, log)


async def bad_network(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Every link in turn; then ClickHouse that refuses, and streams without room."""
    async with at_work(place, report, "network", steps_for(rollouts), 0.1, server=True) as (system, log):
        await faults.links(system, log)
        await faults.clickhouse_refuses(system, log)
        waited = await faults.full_streams(system, log)
        assert any(name.startswith("runner") for name in waited), waited


async def cluster(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Three brokers, every stream on all of them, and the leader killed."""
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
    brokers = []
    for number, port in enumerate(ports):
        more = f"server_name: n{number}\ncluster {{ name: chaos, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
        brokers.append(NatsServer(place / f"nats-{number}", extra_config=more))
    async with AsyncExitStack() as exits:
        for broker in brokers:
            exits.push_async_callback(broker.stop)
        await asyncio.gather(*(broker.start() for broker in brokers))
        async with at_work(place, report, "cluster", steps_for(rollouts // 4), 0.05, brokers=brokers) as (system, log):
            for _ in range(3):
                await faults.leader(system, log)


async def storage(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """A disk without room under JetStream, and weights that are not what they should be."""
    with small_disk(place / "disk", DISK_MIB) as disk:
        broker = NatsServer((disk or place) / "nats")
        async with AsyncExitStack() as exits:
            exits.push_async_callback(broker.stop)
            await broker.start()
            async with at_work(place, report, "storage", steps_for(rollouts // 4), 0.1, brokers=[broker]) as (
                system,
                log,
            ):
                if disk is not None:
                    await faults.full_disk(system, log, disk)
                await faults.corrupt_blobs(system, log)


async def bad_agents(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Agents that leak, fork, flood, will not end, and speak for others, beside a run that goes on."""
    async with at_work(place, report, "agents", steps_for(rollouts // 8), 0.05) as (system, log):
        for name in faults.NASTY:
            await faults.bad_agent(system, log, name)


async def checkpoints(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Several steps between checkpoints, the learner killed amid them, and checkpoints that cannot be read."""
    every = {"checkpoint_interval": 3, "keep_last_checkpoints": 3}
    steps = max(steps_for(rollouts // 4), 9)
    async with at_work(place, report, "checkpoints", steps, 0.05, learner=every) as (system, log):
        for _ in range(3):
            await faults.kill(system, log, "learner")
            await system.tap.steps_made(system.tap.steps + 1)
        await state_loss.truncated_checkpoint(system, log)


async def _restarts(interval: int, place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """The learner stopped at random, by ``kill -9`` and as its operator would: no token is trained beyond the bound.

    One rollout in ten takes many steps, and checkpoints are ``interval`` steps apart.
    """
    num_stops = max(1, kills // 5)
    steps = max(RESTART_STEPS, 6 * num_stops)
    learner = {
        "checkpoint_interval": interval, "max_staleness": RESTART_BOUND, "groups_per_step": RESTART_GROUPS,
        "group_size": RESTART_SAMPLES,
    }  # fmt: skip
    name = f"restarts_{interval}"
    async with at_work(
        place, report, name, steps, 0.01, evaluate=False, learner=learner, entrypoint="steady:solve_with_stragglers",
        bound=RESTART_BOUND,
    ) as (system, log):  # fmt: skip
        for stop in rng.sample([faults.kill, faults.restart] * num_stops, 2 * num_stops):
            num_ended = len(system.tap.ended) + rng.randrange(3 * RESTART_GROUPS * RESTART_SAMPLES)
            await first_completed(system.tap.rollouts(num_ended), asyncio.shield(system.learners["learner"]))
            if system.learners["learner"].done():
                break
            await stop(system, log, "learner")


async def store_disk(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """A disk without room under the embedded ClickHouse."""
    with small_disk(place / "store", STORE_DISK_MIB) as disk:
        async with at_work(place, report, "store_disk", steps_for(rollouts // 8), 0.05) as (system, log):
            if disk is not None:
                await state_loss.full_store_disk(system, log, disk)


async def bus_loss(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """The broker rolled back, emptied, and its directory removed: training goes on, and the gap has a name."""
    quick = {"stall_timeout_seconds": STALL_SECONDS}
    steps = max(steps_for(rollouts // 4), BUS_LOSS_STEPS)
    async with at_work(place, report, "bus_loss", steps, 0.05, evaluate=False, store=quick) as (system, log):
        for lose in (state_loss.rolled_back_bus, state_loss.emptied_bus, state_loss.removed_bus):
            await lose(system, log)


async def absences(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """A learner that is absent or hung, and tasks that no runner can run."""
    quick = {"stall_timeout_seconds": STALL_SECONDS}
    steps = max(steps_for(rollouts // 8), ABSENCE_STEPS)
    async with at_work(place, report, "absences", steps, 0.05, store=quick) as (system, log):
        await absence.malformed_tasks(system, log)
        await absence.absent_learner(system, log)
        await absence.hung_learner(system, log)


async def two_learners(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Two models trained by two learners: each is killed, and each goes on while the other is away."""
    steps = max(steps_for(rollouts // 4), TWO_LEARNERS_STEPS)
    learners = {"learner": "policy", "learner-checker": "checker"}
    async with at_work(
        place, report, "two_learners", steps, 0.02, nodes=1, models=tuple(learners.values()), entrypoint="pair:solve"
    ) as (system, log):
        for name in learners:
            (other,) = (model for learner, model in learners.items() if learner != name)
            child = await system.take_down(name)
            num_steps = system.tap.steps_by_model.get(other, 0)
            async with log.timed(f"{STEPS_ALONE} steps of the other without a learner"):
                await system.tap.steps_made(min(num_steps + STEPS_ALONE, steps), other)
            await system.bring_up(child)
        for _ in range(max(1, kills // 5)):
            target = rng.choice(sorted(learners))
            if not system.learners[target].done():
                await faults.kill(system, log, target)


async def teachers(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """The teacher, the grader and the learner killed in turn: each trained rollout is graded once and scored once."""
    learner = {
        "loss_weights": {"rl": 1, "kl": 1}, "teacher": {"model": "teacher"}, "max_staleness": TEACHERS_BOUND,
        "groups_per_step": TEACHERS_GROUPS, "group_size": TEACHERS_SAMPLES, "checkpoint_interval": 3,
    }  # fmt: skip
    more = (teacher_child(place, TEACHER_SECONDS), grader_child("marks:mark"))
    async with at_work(
        place, report, "teachers", TEACHERS_STEPS + 3 * kills, 0.02, learner=learner, entrypoint="marked:solve",
        nodes=1, more=more, bound=TEACHERS_BOUND, evaluate=False, examine=examine_teaching,
    ) as (system, log):  # fmt: skip
        hits = await faults.kills_in_turn(system, log, rng, kills)
        print(f"kills amid work: {hits}", flush=True)


async def soak(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """20,000 rollouts in one run: nothing is lost, and nothing grows without end."""
    fields = {"run_id": RUN, "agent": "default", "mode": "eval", "deadline": 300.0, "max_attempts": 30}
    problems = [TaskInput(f"soak{number}", {"question": f"what follows {number}?"}) for number in range(SOAK_ROLLOUTS)]
    async with (
        run_system(place, steps=SOAK_STEPS, token_seconds=0.0) as system,
        Resources(system).watched() as resources,
    ):
        await publish_all(system.bus, expand_samples(problems, 1, **fields), timeout=3600, on_done=lambda: None)
        await system.tap.rollouts(SOAK_ROLLOUTS + SOAK_STEPS * SAMPLES * GROUPS)
        await system.finished(FINISH_SECONDS)
        verdict: Verdict = await judge(system, [f"{problem.id}.0" for problem in problems], system.vocabulary)
        verdict.wrong += find_slopes(resources, SOAK_MIB, SOAK_DESCRIPTORS, SOAK_DISK_KIB)
        log = Log()
        log.note("20,000 rollouts", 0.0)
        report.add("soak", log, verdict, resources.memory())


SCENARIOS: dict[str, Scenario] = {
    "kills": random_kills,
    "standstills": standstills,
    "network": bad_network,
    "cluster": cluster,
    "storage": storage,
    "agents": bad_agents,
    "checkpoints": checkpoints,
    "restarts_1": partial(_restarts, 1),
    "restarts_3": partial(_restarts, 3),
    "store_disk": store_disk,
    "bus_loss": bus_loss,
    "absences": absences,
    "two_learners": two_learners,
    "teachers": teachers,
    "no_calls": no_calls,
    "task_sets": task_sets,
    "failover_back": failover_back,
    "soak": soak,
}
DEFAULT_KILLS = 100
KILLS = {"teachers": 50}
"""Number of kills of a scenario, where that is not `DEFAULT_KILLS`."""
