"""``make bench-sizing``: what one of everything costs here, what 10,000 runners come to, and what is full first.

``python -m benchmarks.sizing --simulate`` measures nothing: it goes on from ``results/sizing.json``, with a load and a
plant of your own.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.results import Result, machine, read, table, write
from benchmarks.sizing import measure, real
from benchmarks.sizing.model import Costs, Fit, Load, Plant, Run, full_at, residence, simulate, stations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sizing.md"
PICTURE = PAGE.with_name("sizing.png")
FITS = {"bus_bytes": "bytes on the bus", "disk_bytes": "bytes in ClickHouse", "store_seconds": "CPU of the store"}
SINGLE = {
    "broker_rollout": "CPU of the broker: a rollout",
    "broker_byte": "CPU of the broker: a byte of spans",
    "waiting_runner": "CPU of the broker: a runner that waits, a second",
    "heartbeat_delivery": "CPU of the broker: a heartbeat told",
    "beat": "CPU of a listener: a heartbeat of 10,000",
    "runner_rollout": "CPU of a runner and its agent: a rollout",
    "runner_turn": "CPU of a runner and its agent: a turn",
}
MICRO = 1e6
RATE, TOOK = "10,000 runners, simulated", "a million tasks, simulated"
FEW, MANY = 500, 8
"""Connections, and nodes they hear, by which heartbeats are measured."""


async def measured() -> None:
    """Write costs, then the real loads beside what the model says of them."""
    bus_bytes, disk_bytes, store_seconds = await measure.stored()
    byte = await measure.of_a_byte()
    alone, together = await real.crowd(FEW, 0, 2000), await real.crowd(FEW, MANY, 0)
    first = await real.at_work(1)
    mine = sum(first.seconds.get(role, 0.0) for role in ("runners", "agents"))
    results = []
    for name, fit in (("bus_bytes", bus_bytes), ("disk_bytes", disk_bytes), ("store_seconds", store_seconds)):
        scale, unit = (MICRO, "µs") if name == "store_seconds" else (1.0, "B")
        for part in fields(Fit):
            results.append(Result(f"{FITS[name]}: a {part.name}", scale * getattr(fit, part.name), unit))
    single = {
        "broker_rollout": alone.rollout,
        "broker_byte": byte,
        "waiting_runner": alone.idle / FEW,
        "heartbeat_delivery": max(together.idle - alone.idle, 0.0) / (FEW * MANY),
        "beat": await measure.read(10_000),
        "runner_rollout": 0.0,
        "runner_turn": mine / real.TURNS,
    }
    results += [Result(SINGLE[name], MICRO * value, "µs") for name, value in single.items()]
    write("sizing", results)
    costs = costs_of(read("sizing"))
    for more in (real.beside(costs), real.growth(first, costs)):
        write("sizing", await more, whole=False)


def costs_of(results: Sequence[dict[str, Any]]) -> Costs:
    """From what was written."""
    by_name = {str(result["case"]): float(result["value"]) for result in results if result["value"] is not None}

    def fit(name: str) -> Fit:
        scale = MICRO if name == "store_seconds" else 1.0
        return Fit(*(by_name[f"{FITS[name]}: a {part.name}"] / scale for part in fields(Fit)))

    single = {name: by_name[case] / MICRO for name, case in SINGLE.items()}
    return Costs(bus_bytes=fit("bus_bytes"), disk_bytes=fit("disk_bytes"), store_seconds=fit("store_seconds"), **single)


def render_answer(load: Load, plant: Plant, costs: Costs, run: Run) -> str:
    """What a simulation came to, as Markdown: the stations, then bytes and money."""
    rate, hours = run.steady, run.took / 3600
    loads = stations(load, plant, costs, rate)
    lines = [
        f"{load.tasks:,} tasks, {load.runners:,} runners of {load.slots} slots, {load.turns:g} turns of "
        f"{load.prompt_tokens:g} + {load.response_tokens:g} tokens and {load.tool_seconds:g} s of tools; {plant.nodes} "
        f"nodes, {plant.learner_gpus} GPUs of the learner, {plant.ingesters} ingesters, {plant.broker_cores:g} cores "
        "for nats-server:",
        "",
        f"**{rate:,.0f} rollouts/s, {rate * load.turns:,.0f} model calls/s, {hours:.1f} hours in all; "
        f"{loads[0].name} full first.**",
        "",
        "| station | asked of it | it can | unit | full to | with all slots busy, full at |",
        "|---|---|---|---|---|---|",
    ]
    for item in loads:
        at = full_at(load, plant, costs, item.name)
        many = f"{at:,.0f} runners" if at < 1e6 else "more than a million runners"
        cells = [item.name, f"{item.demand:,.3g}", f"{item.capacity:,.3g}", item.unit, f"{item.share:.1%}", many]
        lines.append("| " + " | ".join(cells) + " |")
    of = {entry.name: entry.demand for entry in loads}
    sent, kept = costs.bus_bytes.of(load), costs.disk_bytes.of(load)
    cores = {"broker": of["broker: all"], "store": of["store: inserts"], "runners": of["runner"] * load.runners}
    gpus = hours * plant.gpu_hour * (plant.nodes + plant.learner_gpus)
    money = gpus + hours * plant.core_hour * sum(cores.values())
    disk = load.tasks * kept / 1e9
    lines += [
        "",
        f"- Bytes: {sent / 1e3:,.1f} kB a rollout on the bus, {rate * sent / 1e6:,.0f} MB/s; {kept / 1e3:,.1f} kB in "
        f"ClickHouse, {disk:,.1f} GB in all.",
        f"- Cores busy: {', '.join(f'{name} {busy:,.1f}' for name, busy in cores.items())} (agents included).",
        f"- Money, at {plant.gpu_hour:g} a GPU hour and {plant.core_hour:g} an hour of a busy core: {money:,.0f}, "
        f"{1000 * money / load.tasks:.2f} for a thousand rollouts, GPUs {gpus / money:.0%} of it; the disk "
        f"{disk * plant.disk_gb_month:,.2f} a month.",
    ]
    return "\n".join(lines)


def picture(load: Load, plant: Plant, costs: Costs, run: Run, path: Path) -> None:
    """How full everything is by the number of runners, and the simulated run over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    counts = np.geomspace(100, 100_000, 40)
    shares: dict[str, list[float]] = {}
    for count in counts:
        grown = replace(load, runners=int(count))
        nodes = max(1, round(plant.nodes * count / load.runners))
        local = replace(plant, nodes=nodes)
        for station in stations(grown, local, costs, grown.runners * grown.slots / residence(grown, local)):
            shares.setdefault(station.name, []).append(station.share)
    displayed = set(shares) - {"nodes", "learner"}  # which were said to grow
    for name in sorted(displayed, key=lambda name: -shares[name][-1]):
        left.plot(counts, shares[name], label=name)
    left.axhline(1, color="black", linewidth=0.8, linestyle="--")
    left.axvline(load.runners, color="black", linewidth=0.8, linestyle=":")
    left.set(xscale="log", yscale="log", ylim=(1e-3, 1e2), xlabel="runner processes", ylabel="how full (1: no more)")
    left.set_title("nodes in proportion, slots all busy")
    left.legend(frameon=False, fontsize="small")
    hours = np.array(run.seconds) / 3600
    right.plot(hours, run.rate, color="tab:blue", linewidth=0.8, label="rollouts/s")
    right.plot(hours, np.array(run.calls) / plant.nodes, color="tab:orange", label="calls open at a node")
    right.plot(hours, np.array(run.unread) / 1e6, color="tab:green", label="MB the store has not taken")
    right.set(
        xlabel="hours", title=f"{load.tasks:,} tasks, {load.runners:,} runners, {plant.nodes} nodes", ylim=(0, None)
    )
    right.legend(frameon=False, fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def rewrite(page: str, name: str, text: str) -> str:
    """The page with what stands between a pair of marks made anew."""
    before, begin, rest = page.partition(f"<!-- sizing {name}: begin -->")
    _, end, after = rest.partition(f"<!-- sizing {name}: end -->")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true", help="measure nothing; print what your own figures come to")
    parser.add_argument("--picture", type=Path, help="with --simulate: draw it there")
    for kind in (Load, Plant):
        for field in fields(kind):
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    options = parser.parse_args()
    load = Load(**{item.name: getattr(options, item.name) for item in fields(Load)})
    plant = Plant(**{item.name: getattr(options, item.name) for item in fields(Plant)})
    if not options.simulate:
        started = time.monotonic()
        uvloop.run(measured())
        print(f"measured in {time.monotonic() - started:.0f} s on {machine()}", flush=True)
        print(table(read("sizing")), flush=True)
    costs = costs_of(read("sizing"))
    run = simulate(load, plant, costs)
    text = render_answer(load, plant, costs, run)
    print(text)
    if options.simulate:
        if options.picture:
            picture(load, plant, costs, run, options.picture)
        return
    came_to = [Result(RATE, run.steady, "rollouts/s"), Result(TOOK, run.took, "s")]
    write("sizing", came_to, whole=False)
    page = rewrite(PAGE.read_text(), "costs", table(read("sizing")))
    PAGE.write_text(rewrite(page, "run", text))
    picture(load, plant, costs, run, PICTURE)


if __name__ == "__main__":
    main()
