"""The page of benchmarks/gpu.py: tables and targets, made of the results of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.gpu_parts.contenders import (
    CALL,
    COLD,
    CONTENDERS,
    DONE,
    FILE,
    ORBAX,
    PACKS,
    SAFETENSORS,
    SAVE,
    WARM,
)
from benchmarks.gpu_parts.copies import TO_DEVICE, TO_HOST, sets_of
from benchmarks.pages import page_head

MIB = 1 << 20
SETTLED = 10  # saves after which the memory is not to grow
GROWTH_MIB_MAX = 16.0
BLOCKING_MAX, RATE_MIN, TIMES_MIN = 0.2, 0.8, 10.0
SAVES, LOADS, REPEATED = "Saves", "Loads", "Repeated asynchronous saves"
FIRST_LOAD = "first load of a process"
PER_ROW = 10  # saves in one row of the table of the memory

_TITLE = "Arrays on GPUs: cordwood, its peers, and what the hardware allows"
_HOW = """\
Written by `make gpu`. Each part ran in processes of its own, one at a time. 1 GB is 10^9 bytes. A
median is that of all rounds but the first, which allocates memory; after a single round it is that
round."""
_DRY = "**A dry run on CPU devices, with small sizes: the numbers say nothing about a GPU.**"

Values = Mapping[str, Any]


class Target(NamedTuple):
    """A number to reach; `measured` is None if something that it needs was not measured."""

    what: str
    measured: float | None
    limit: float
    at_most: bool = False

    @property
    def verdict(self) -> str:
        """The words of the last column."""
        if self.measured is None:
            return "not measured"
        met = self.measured <= self.limit if self.at_most else self.measured >= self.limit
        return "met" if met else "**not met**"


def as_markdown(run: Values) -> str:
    """Return the page of a run, which may lack parts."""
    machine = _values(run, "machine")
    lines = page_head(_TITLE, _HOW, machine.get("versions", {}), _machine_line(machine))
    sections = {
        **({} if run["dry"] else {"Targets": _targets(run)}),
        "Machine": _machine(run),
        "Correctness": _correctness(run),
        "Copies between a GPU and host memory": _copies(run),
        "Disk, page cache and digests": _disk(run),
        SAVES: _saves(run),
        LOADS: _loads(run),
        REPEATED: _repeated(run),
        "What failed, and what was not possible": _failures(run),
    }
    lines += [_DRY, ""] * bool(run["dry"])
    for title, body in sections.items():
        lines += [f"## {title}", "", *body, ""]
    return "\n".join(lines)


# Numbers


def _values(run: Values, part: str) -> Values:
    values: Values = run["parts"].get(part, {}).get("values", {})
    return values


def median_of(seconds: Sequence[float]) -> float:
    """Return the median of all rounds but the first; of a single round, that one."""
    return statistics.median(seconds[1:] or seconds)


def seconds_of(run: Values, what: str, name: str) -> float | None:
    """Return the median of a contender's times; None if there are none."""
    rounds = _values(run, "contenders").get("seconds", {}).get(what, {}).get(name)
    return median_of(rounds) if rounds else None


def rate_of(run: Values, what: str, name: str) -> float | None:
    """Return a contender's rate in GB/s."""
    seconds = seconds_of(run, what, name)
    return None if seconds is None else _values(run, "contenders")["tree"]["bytes"] / seconds / 1e9


def copy_rate(run: Values, ways: Iterable[str]) -> float | None:
    """Return the best rate of some ways to copy, in GB/s."""
    copies = _values(run, "copies")
    rates = [value["median"] for name, value in copies.items() if name.split(", ")[0] in ways]
    return max(rates, default=None)


def disk_rate(run: Values, *names: str) -> float | None:
    """Return the best rate of some measurements of the disk, over all numbers of threads."""
    disk = _values(run, "disk")
    return max([rate for name in names for rate in disk.get(name, {}).values()], default=None)


def growth_mib(resident_mib: Sequence[float]) -> float | None:
    """Return the growth of the resident memory after the tenth save; None after too few saves."""
    if len(resident_mib) <= SETTLED:
        return None
    return resident_mib[-1] - resident_mib[SETTLED - 1]


def targets(run: Values) -> list[Target]:
    """Return all targets with what was measured."""
    write = _smaller(
        disk_rate(run, "write with O_DIRECT", "write, buffered"), copy_rate(run, _plain(TO_HOST))
    )
    read = _smaller(disk_rate(run, "read with O_DIRECT"), copy_rate(run, _plain(TO_DEVICE)))
    blocking = _ratio(seconds_of(run, CALL, PACKS), seconds_of(run, CALL, ORBAX))
    made = [Target(f"blocking of `save_async` / of {ORBAX}", blocking, BLOCKING_MAX, at_most=True)]
    for name in (PACKS, FILE):
        save, load = rate_of(run, SAVE, name), rate_of(run, COLD, name)
        what = "the smaller of the rates of disk and copies"
        made.append(Target(f"save, {name} / {what}", _ratio(save, write), RATE_MIN))
        made.append(Target(f"cold load, {name} / {what}", _ratio(load, read), RATE_MIN))
    for name in (PACKS, FILE):
        times = _ratio(seconds_of(run, WARM, SAFETENSORS), seconds_of(run, WARM, name))
        what = f"load from the page cache, {name}: times as fast as {SAFETENSORS}"
        made.append(Target(what, times, TIMES_MIN))
    saves = _values(run, "repeated_saves").get("saves", {})
    resident = saves.get("resident_mib", [])
    growth = growth_mib(resident) if resident and len(resident) == saves["asked"] else None
    what = f"{saves.get('asked', 300)} asynchronous saves: growth after the tenth, MiB"
    return [*made, Target(what, growth, GROWTH_MIB_MAX, at_most=True)]


def _plain(ways: Iterable[str]) -> set[str]:
    """Return the names of copies up to the first comma, as the results begin with them."""
    return {name.split(", ")[0] for name in ways}


def _smaller(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one / other


# Tables


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, column: str = "---:"
) -> list[str]:
    """Return a table. `column` aligns all columns but the first: numbers to the right."""
    lines = [f"| {' | '.join(header)} |", f"|---|{f'{column}|' * (len(header) - 1)}"]
    return lines + [f"| {' | '.join(each.replace('|', '/') for each in row)} |" for row in rows]


def size_text(size_bytes: int) -> str:
    """Return a size with its unit."""
    unit, name = next(each for each in _UNITS if size_bytes >= each[0] or each[0] == 1)
    return f"{size_bytes / unit:.4g} {name}"


_UNITS = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes")]


def _targets(run: Values) -> list[str]:
    rows = []
    for target in targets(run):
        measured = "" if target.measured is None else f"{target.measured:.2f}"
        limit = f"at {'most' if target.at_most else 'least'} {target.limit:g}"
        rows.append((target.what, measured, limit, target.verdict))
    return [
        (
            "The numbers come from the tables below. The rate of the disk is the best of direct "
            "and buffered writes, or of direct reads; that of copies is the best of all ways."
        ),
        "",
        *table(("target", "measured", "limit", ""), rows),
    ]


def _machine_line(machine: Values) -> str:
    line = machine.get("host", {}).get("line", "the machine was not described")
    drivers = [each.split(", ")[1] for each in machine.get("driver", []) if ", " in each]
    return f"{line}, driver {drivers[0]}" if drivers else line


def _machine(run: Values) -> list[str]:
    machine = _values(run, "machine")
    rows = []
    for number, device in enumerate(machine.get("devices", [])):
        memory = device["memory"].get("bytes_limit")
        size = f", {memory / (1 << 30):.1f} GiB for jax" if memory else ""
        kinds = ", ".join(device["memory_kinds"])
        rows.append((f"device {number}", f"{device['kind']}{size}; memory kinds {kinds}"))
        if number == 0:
            rows.append(("runtime", device["runtime"]))
    rows += [("nvidia-smi", each) for each in machine.get("driver", [])]
    for name, value in machine.get("host", {}).items():
        if name != "line":
            rows.append((name.replace("_", " "), str(value)))
    gib = run.get("gib")
    size = "as suits the machine" if gib is None else f"{gib:g} GiB"
    rows.append(("asked for", f"{run['seconds']:g} s in all, a tree {size}"))
    taken = [f"{name} {part['seconds']:.0f} s" for name, part in run["parts"].items()]
    rows.append(("took", ", ".join(taken)))
    return [
        "What jax, the driver and the system say of themselves.",
        "",
        *table(("", ""), rows, column="---"),
    ]


def _correctness(run: Values) -> list[str]:
    part = run["parts"].get("correctness", {"values": {}, "errors": {}, "missing": {}})
    values, errors, missing = part["values"], part["errors"], part["missing"]
    dtypes = [name.removeprefix("dtype ") for name in values if name.startswith("dtype ")]
    rows = [(", ".join(dtypes), "equal")] if dtypes else []
    rows += [(name, value) for name, value in values.items() if not name.startswith("dtype ")]
    rows += [(name, f"**{error}**") for name, error in errors.items()]
    rows += [(name, reason) for name, reason in missing.items()]
    return [
        (
            f"{len(values)} checks passed, {len(errors)} failed, {len(missing)} were not possible. "
            "Each array was saved by `save` and by `save_async`, to a directory and to a "
            ".safetensors file, loaded again, and compared bit by bit, with its type and placement."
        ),
        "",
        *table(("check", "result"), rows, column="---"),
    ]


def _copies(run: Values) -> list[str]:
    copies = _values(run, "copies")
    if "bytes" not in copies:
        return ["Nothing was measured."]
    sets = sets_of(copies["bytes"])
    header = ["GB/s"]
    for title, sizes in sets.items():
        header += [f"{title} of {size_text(sizes[0])}", "first round"]
    rows = []
    for name in (*TO_HOST, *TO_DEVICE):
        cells = [f"{'to' if name in TO_HOST else 'from'} host memory: {name}"]
        for title in sets:
            rates = copies.get(f"{name}, {title}", {})
            cells += [_cell(rates.get("median")), _cell(rates.get("first"))]
        rows.append(cells)
    lines = [
        (
            "How fast jax copies between one GPU and host memory, each way alone. The clock "
            "stops when all arrays are ready."
        ),
        "",
        *table(header, rows),
    ]
    view = copies.get("a pinned array as numpy", "not measured")
    lines += ["", f"`np.asarray` of an array in pinned host memory: {view}."]
    reads = copies.get("page cache to pinned memory", {})
    text = "Reads from the page cache into pinned memory, by number of threads: "
    text += ", ".join([f"{count}: {rate:.2f} GB/s" for count, rate in reads.items()])
    return [*lines, "", f"{text if reads else f'{text}not measured'}."]


def _disk(run: Values) -> list[str]:
    disk = _values(run, "disk")
    names = [name for name, value in disk.items() if isinstance(value, dict)]
    counts = sorted({int(count) for name in names for count in disk[name]})
    rows = [[name, *[_cell(disk[name].get(str(count))) for count in counts]] for name in names]
    header = ["GB/s, by number of threads", *map(str, counts)]
    size = size_text(disk.get("bytes", 0))
    return [
        (
            f"How fast the host writes (with fsync), reads and hashes {size}, without jax. A "
            "virtual machine's host may hold in its own memory what is not in the page cache."
        ),
        "",
        *table(header, rows),
    ]


def _saves(run: Values) -> list[str]:
    return [
        (
            f"{_tree_line(run)} Each save goes to a new path; cordwood's are on the disk when they "
            "end, the peers' need not be."
        ),
        "",
        *_times_table(run, (SAVE,)),
        "",
        (
            "The arrays were ready before the call. Then came the call itself, which blocks the "
            "program, and the time from its begin until the save was done."
        ),
        "",
        *_times_table(run, (CALL, DONE)),
    ]


def _loads(run: Values) -> list[str]:
    lines = [
        (
            f"{_tree_line(run)} Each load ends when all arrays are ready on the GPU. For a cold "
            "one, the system was asked to drop the files from the page cache."
        ),
        "",
        *_times_table(run, (WARM, COLD)),
        "",
        (
            "The first load of a new process, from the page cache, once for each contender. The "
            "process has imported its packages and computed with jax before."
        ),
        "",
        f"| {FIRST_LOAD} | GB/s | ms |",
        "|---|---:|---:|",
    ]
    size = _values(run, "contenders").get("tree", {}).get("bytes", 0)
    for name in CONTENDERS:
        seconds = _values(run, "first_loads").get(name, {}).get(WARM)
        lines.append(
            _absent_row(run, "first_loads", name, 2)
            if seconds is None
            else f"| {name} | {size / seconds / 1e9:.2f} | {1e3 * seconds:,.1f} |"
        )
    is_drawn = bool(_values(run, "contenders").get("seconds"))
    picture = _picture("speeds", "The rates of saves and loads of arrays on a GPU", is_drawn)
    return [*lines, *_ways(run), *picture]


def _ways(run: Values) -> list[str]:
    """Return tables of the ways to load, if there are any; see `WAYS_TO_LOAD`."""
    times = _values(run, "contenders").get("seconds", {})
    names = [name for name in times.get(WARM, {}) if name not in CONTENDERS]
    if not names:
        return []
    intro = "Ways to load: variants inside cordwood, beside the one that it uses."
    return ["", intro, "", *_times_table(run, (WARM, COLD), (PACKS, *names))]


def _tree_line(run: Values) -> str:
    tree = _values(run, "contenders").get("tree")
    if tree is None:
        return "Nothing was measured."
    return (
        f"{tree['leaves']:,} arrays on one GPU, {size_text(tree['bytes'])}: a transformer in "
        "bfloat16 with Adam's moments in float32. The contenders took turns in one process."
    )


def _times_table(run: Values, kinds: Sequence[str], names: Sequence[str] = CONTENDERS) -> list[str]:
    """Return a table for each kind of time, the fastest first."""
    lines: list[str] = []
    times = _values(run, "contenders").get("seconds", {})
    size = _values(run, "contenders").get("tree", {}).get("bytes", 0)
    for kind in kinds:
        measured = {name: each for name, each in times.get(kind, {}).items() if name in names}
        medians = {name: median_of(rounds) for name, rounds in measured.items()}
        header = f"| {kind} | GB/s | ms | x the fastest | first round, ms | rounds |"
        lines += [""] * bool(lines) + [header, "|---|---:|---:|---:|---:|---:|"]
        for name, seconds in sorted(medians.items(), key=lambda item: item[1]):
            factor = seconds / min(medians.values())
            lines.append(
                f"| {name} | {size / seconds / 1e9:.2f} | {1e3 * seconds:,.1f} | {factor:.1f} | "
                f"{1e3 * measured[name][0]:,.1f} | {len(measured[name])} |"
            )
        without = [SAFETENSORS] if kind in (CALL, DONE) else []
        absent = [name for name in names if name not in (*measured, *without)]
        lines += [_absent_row(run, "contenders", name, 5) for name in absent]
    return lines


def _absent_row(run: Values, part: str, name: str, cells: int) -> str:
    state = run["parts"].get(part, {"missing": {}, "errors": {}})
    reasons = {**state["errors"], **state["missing"]}
    reason = next((text for key, text in reasons.items() if name in key), "not measured")
    return f"| {name}: {reason} |{' |' * cells}"


def _repeated(run: Values) -> list[str]:
    saves = _values(run, "repeated_saves").get("saves")
    if saves is None:
        return ["Nothing was measured."]
    resident: list[float] = saves["resident_mib"]
    used: list[float] = saves["used_mib"]
    growth = growth_mib(resident)
    rows = [
        ("saves", f"{len(resident)} of {saves['asked']}"),
        ("size of the tree", size_text(saves["tree_bytes"])),
        ("time of all, s", f"{saves['seconds']:.1f}"),
        ("median time of the call, ms", f"{1e3 * statistics.median(saves['calls'] or [0]):.1f}"),
        ("growth of the resident memory after the tenth save, MiB", _cell(growth)),
        ("growth of the memory in use of the machine, MiB", _cell(growth_mib(used))),
        ("most bytes for staging at one time, MiB", f"{saves['staging_bytes'] / MIB:.1f}"),
        ("of these after the last save, MiB", f"{saves['staging_after_bytes'] / MIB:.1f}"),
    ]
    if saves["device_peak_bytes"]:
        peak = saves["device_peak_bytes"] / MIB
        rows.append(("peak of device memory, MiB", f"{peak:.0f}"))
    return [
        (
            "A loop that steps, calls `save_async`, at once takes a step that donates what is "
            "being saved, and waits. The bytes for staging are those of live jax arrays in "
            "pinned host memory, looked at every 5 ms."
        ),
        "",
        *table(("", ""), rows),
        "",
        "The resident memory of the process after each save, in MiB.",
        "",
        *_memory_table(resident),
        *_picture("memory", "The resident memory after each asynchronous save", len(resident) > 1),
    ]


def _memory_table(resident_mib: Sequence[float]) -> list[str]:
    rows = []
    for start in range(0, len(resident_mib), PER_ROW):
        numbers = [f"{each:.0f}" for each in resident_mib[start : start + PER_ROW]]
        cells = numbers + [""] * (PER_ROW - len(numbers))
        rows.append((f"after save {start + 1}", *cells))
    return table(("MiB", *["", *[f"+{n}" for n in range(1, PER_ROW)]]), rows)


def _failures(run: Values) -> list[str]:
    rows = [
        (part, name, what, text)
        for part, state in run["parts"].items()
        for what, texts in (("failed", state["errors"]), ("not possible", state["missing"]))
        for name, text in texts.items()
    ]
    if not rows:
        return ["Nothing."]
    intro = "Errors with their type and first line."
    return [intro, "", *table(("part", "what", "", "why"), rows, column="---")]


def _cell(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _picture(name: str, text: str, is_drawn: bool) -> list[str]:
    """Return the lines that show a chart of gpu_charts.py, with an empty line before them."""
    if not is_drawn:
        return []
    return [
        "",
        "<picture>",
        f'  <source media="(prefers-color-scheme: dark)" srcset="charts/gpu-{name}-dark.svg">',
        f'  <img src="charts/gpu-{name}-light.svg" alt="{text}">',
        "</picture>",
    ]
