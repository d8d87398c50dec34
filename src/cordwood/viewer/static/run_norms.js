// The norms of leaves over the steps of a run: computed on demand, drawn as they come.
const {
  counted, element, fetchResource, formatCount, formatNumber, hasResource, inExport, inTasks, naturalKey,
  panel, printable, replace, resourceName, sortedRows, task, toNumber,
} = cordwood;
const MOST_DRAWN = 8; // lines at first; the list below the chart draws more
const REDRAW_MS = 500;
const SAMPLE_BYTES = 256 * 2 ** 20; // of a step, as in run_view.py
const ALL = "all";

// What was computed; it is kept while the page is open.
const leaves = []; // {path, group, layer, kind}
const numbers = new Map(); // of leaves, by path
const computed = { sample: new Map(), all: new Map() }; // step name -> norms by leaf
const failures = new Map(); // step name -> message
const estimated = { sample: false, all: false }; // true if a norm is of a part of the elements

/** Keep the answer of the resource `norms`. */
function keep(step, read, answer) {
  const norms = []; // by leaf; the places of leaves that were not read, or are not in this step, are empty
  answer.path.forEach((path, i) => {
    let number = leaves[i]?.path === path ? i : numbers.get(path);
    if (number === undefined) {
      number = leaves.length;
      numbers.set(path, number);
      leaves.push({
        path,
        group: answer.group[i] || "other",
        layer: answer.layer[i] || "outside layers",
        kind: answer.kind[i] || "other",
      });
    }
    if (answer.l2[i] !== null) norms[number] = toNumber(answer.l2[i]);
  });
  computed[read].set(step.name, norms);
  estimated[read] ||= answer.sampled.includes(true);
  if (answer.problems.length) failures.set(step.name, answer.problems[0].message);
}

/** Return positions so that each prefix is spread over the whole: ends, middle, quarters... */
function coarseToFine(count) {
  const last = count - 1;
  const order = new Set(count > 0 ? [0, last] : []);
  for (let step = last; step > 1;) {
    step = Math.ceil(step / 2);
    for (let i = 0; i < last; i += step) order.add(i);
  }
  return [...order];
}

/**
 * Compute the lines of leaves that are grouped: `[{name, members, first, last, ...}, ..]`.
 * It is a generator for `inTasks`.
 */
function* linesOf(steps, norms, { by, tree, search }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = new Map();
  for (let number = 0; number < leaves.length; number++) {
    if (number % 2000 === 0) yield;
    const leaf = leaves[number];
    if (tree !== ALL && leaf.group !== tree) continue;
    const path = leaf.path.toLowerCase();
    if (!words.every((word) => path.includes(word))) continue;
    const key = by === "leaf" ? leaf.path : leaf[by];
    const name = tree === ALL && by !== "leaf" && by !== "group" ? `${leaf.group} · ${key}` : key;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(number);
  }
  const computedSteps = steps.filter((step) => norms.has(step.name));
  const lines = [];
  for (const [name, members] of groups) {
    lines.push(describe(name, members, computedSteps, norms));
    yield;
  }
  return lines;
}

/** Return the points of a line; only lines that are drawn need them. */
function pointsOf(line, steps, norms) {
  const points = [];
  for (const [i, step] of steps.entries()) {
    const values = norms.get(step.name);
    if (values) points.push([cordwood.stepPlace(step, i), normOf(values, line.members)]);
  }
  return points;
}

/** Return the norm of several leaves; null if none of them was read. */
function normOf(norms, members) {
  let squares = 0;
  let count = 0;
  for (const number of members) {
    const norm = norms[number];
    if (norm === undefined) continue;
    squares += norm * norm;
    count += 1;
  }
  return count ? Math.sqrt(squares) : null;
}

/** Return a line with its first and last norm, and the first step that is not finite. */
function describe(name, members, steps, norms) {
  let first = null;
  let last = null;
  let broken = null;
  for (const step of steps) {
    const norm = normOf(norms.get(step.name), members);
    if (norm === null) continue;
    if (Number.isFinite(norm)) {
      first ??= norm;
      last = norm;
    } else broken ??= { step: step.name, value: norm };
  }
  const ratio = first > 0 ? last / first : null;
  return {
    name,
    path: members.length === 1 ? leaves[members[0]].path : name,
    members,
    first,
    last,
    ratio,
    broken,
    rank: broken ? Infinity : ratio > 0 ? Math.abs(Math.log(ratio)) : 0,
  };
}

/** Return the panel of norms: `{element, setMarker(x)}`. */
cordwood.runNorms = function ({ steps, onPick, marker, initial, onChange }) {
  const usable = steps.filter((step) => step.state === "whole");
  const state = { by: "layer", tree: "params", search: "", read: "sample", ...initial };
  const chosen = new Map(); // name of a line -> drawn or not, where the user chose
  let chart = null;
  let updates = 0;

  const chartBox = element("div");
  const listBox = element("div");
  const note = element("p.muted.small", { role: "status" });
  const table = cordwood.table({
    columns: columns(),
    rows: [],
    search: false,
    label: "Lines of the chart",
    nouns: ["line", "lines"],
    rowClass: (row) => (row.drawn ? "line-drawn" : ""),
    onOpen: (row) => toggle(row),
    initial: { sort: "change", descending: true },
  });
  listBox.append(table.element);
  listBox.hidden = true;

  /** Return the columns of the list of lines. */
  function columns() {
    const number = cordwood.numberColumn;
    const mark = (row) => (row.drawn ? "☑ " : "☐ ");
    return [
      {
        name: "name",
        label: "line",
        value: (row) => naturalKey(row.name),
        cell: (row) => element("span.key", mark(row), printable(row.name, 120)),
      },
      number("count", "leaves", formatCount, { of: (row) => row.members.length, width: 5, wide: true }),
      number("first", "first", formatNumber, { width: 6, wide: true }),
      number("last", "last", formatNumber, { width: 6 }),
      number("change", "last / first", (ratio) => `× ${formatNumber(ratio)}`, {
        of: (row) => row.ratio,
        value: (row) => row.rank,
        title: "The order is by the size of the change, lines with NaN first",
      }),
      { name: "broken", label: "not finite", width: 14, cell: brokenWords },
    ];
  }

  /** Return since when a line is not finite. */
  function brokenWords(row) {
    if (!row.broken) return "";
    const words = `${formatNumber(row.broken.value)} from step ${printable(row.broken.step, 20)}`;
    return element("span.badge-damaged", words);
  }

  /** Draw or remove a line of the chart. */
  function toggle(row) {
    chosen.set(row.name, !row.drawn);
    update();
  }

  /** Compute the lines and draw them; a newer call overtakes this one. */
  async function update() {
    const mine = ++updates;
    const norms = computed[state.read];
    const missing = usable.filter((step) => !norms.has(step.name)).length;
    listBox.hidden = norms.size === 0;
    if (!norms.size) return;
    fillTrees();
    const lines = await inTasks(linesOf(steps, norms, state), cordwood.viewSignal);
    if (mine !== updates) return;
    const ranked = await inTasks(sortedRows(lines, (line) => line.rank, true));
    if (mine !== updates) return;
    ranked.forEach((line, i) => (line.drawn = chosen.get(line.name) ?? i < MOST_DRAWN));
    const drawn = lines.filter((line) => line.drawn);
    chart = cordwood.charts.lines({
      series: drawn.map((line) => ({ name: line.name, points: pointsOf(line, steps, norms) })),
      xLabel: "step",
      yLabel: "L2 norm",
      logarithmic: chartIsLogarithmic(),
      marker,
      onPick,
      label: `${drawn.length} of ${counted(lines.length, "line")}`,
    });
    replace(chartBox, chart);
    table.setRows(lines);
    replace(note, noteOf(norms, missing));
  }

  /** Return true if the chart on screen has a logarithmic axis. */
  function chartIsLogarithmic() {
    return chart?.querySelector("input[type=checkbox]")?.checked ?? false;
  }

  /** Return what the chart leaves out. */
  function noteOf(norms, missing) {
    const failed = [...failures].filter(([name]) => steps.some((step) => step.name === name));
    return [
      `Norms of ${counted(norms.size, "step")}`,
      estimated[state.read] ? ", estimated from samples" : ", of all elements",
      missing ? `; ${counted(missing, "step")} not computed yet` : "",
      ". Choose lines in the list. A cross marks a norm that is NaN or infinite.",
      failed.map(([name, message]) =>
        element("span.failure", ` Step ${printable(name, 40)}: ${printable(message, 300)}`),
      ),
    ];
  }

  /** Compute the norms of the steps that have none yet, from coarse to fine. */
  async function compute(onProgress, signal) {
    const read = state.read;
    const missing = usable.filter((step) => !computed[read].has(step.name));
    const sizeOf = (step) => Math.min(step.written_bytes ?? 0, read === "sample" ? SAMPLE_BYTES : Infinity);
    const total = missing.reduce((sum, step) => sum + sizeOf(step), 0);
    let done = 0;
    let drawnAt = 0;
    for (const [i, position] of coarseToFine(missing.length).entries()) {
      const step = missing[position];
      const doing = `step ${step.name} (${i + 1} of ${missing.length})`;
      const report = ({ done_bytes: bytes }) =>
        onProgress({ done_bytes: done + Math.min(bytes, sizeOf(step)), total_bytes: total, doing });
      report({ done_bytes: 0 });
      await computeOne(step, read, report, signal);
      done += sizeOf(step);
      if (performance.now() - drawnAt > REDRAW_MS) {
        await update();
        drawnAt = performance.now();
      }
    }
    await update();
  }

  /** Compute the norms of one step; a step that cannot be read is noted. */
  async function computeOne(step, read, onProgress, signal) {
    try {
      const name = resourceName("norms", step.name, read);
      keep(step, read, await fetchResource(name, { onProgress, signal }));
    } catch (error) {
      if (signal?.aborted || error.type === "NoServer") throw error;
      failures.set(step.name, error.message);
      computed[read].set(step.name, []);
    }
  }

  const treeBox = element("span");

  /** Return a list to choose from, for one member of the state. */
  function choice(label, name, choices) {
    return cordwood.select(label, choices, state[name], (value) => change(name, value));
  }

  /** Offer the trees that the leaves are in. */
  function fillTrees() {
    const names = [...new Set(leaves.map((leaf) => leaf.group))];
    if (!leaves.length && state.tree !== ALL) names.push(state.tree);
    if (!names.includes(state.tree) && state.tree !== ALL) state.tree = names[0];
    const choices = [...names.map((name) => [name, name]), [ALL, "everything"]];
    if (treeBox.querySelectorAll("option").length === choices.length) return;
    replace(treeBox, choice("Leaves of", "tree", choices));
  }

  const reads = choice("Read", "read", [
    ["sample", "samples"],
    ["all", "everything"],
  ]);
  const kinds = choice("One line for each", "by", [
    ["layer", "layer"],
    ["kind", "kind of weight"],
    ["leaf", "leaf"],
    ["group", "tree"],
  ]);
  const search = cordwood.searchInput("Key paths that contain", "…", state.search, (text) =>
    change("search", text),
  );

  /** Follow a change of the controls. */
  function change(name, value) {
    state[name] = value;
    if (name !== "read") chosen.clear();
    else makeTask();
    onChange?.(name, value);
    update();
  }

  const taskBox = element("span");

  /** Offer the computation, where something is not computed yet. */
  function makeTask() {
    const missing = usable.filter((step) => !computed[state.read].has(step.name));
    const title = `Compute the norms of ${counted(missing.length, "step")}`;
    replace(taskBox, missing.length > 0 && task({ title, run: compute }));
  }

  /** Return a control with its label. */
  function labelled(label, control) {
    return element("label.control", element("span.muted", label), control);
  }

  const tools = element(
    "div.table-tools",
    labelled("Read", reads),
    taskBox,
    labelled("Leaves of", treeBox),
    labelled("One line for each", kinds),
    search,
  );
  fillTrees();
  if (inExport) loadEmbedded();
  else makeTask();
  update();

  /** Take the norms that an export holds. */
  async function loadEmbedded() {
    for (const step of usable) {
      for (const read of ["all", "sample"]) {
        const name = resourceName("norms", step.name, read);
        if (!hasResource(name)) continue;
        await computeOne(step, read, null, cordwood.viewSignal);
        state.read = read;
      }
    }
    reads.value = state.read;
    if (!computed[state.read].size) replace(note, "This file holds no norms.");
    update();
  }

  return {
    element: panel("Norms of leaves over steps", tools, chartBox, note, listBox),
    setMarker(x) {
      marker = x;
      chart?.setMarker(x);
    },
  };
};
