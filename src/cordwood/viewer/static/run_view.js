// The view of a run: timeline, slider, the chosen step, metrics, norms, and all steps as a table.
const {
  counted, element, fetchResource, formatBytes, formatCount, formatNumber, go, inExport, keyPath, nextTask,
  panel, printable, replace, runMatrix, runNorms, runTimeline, setQuery, stepBefore, stepFacts, stepMark,
  stepMarks, stepPair, stepTime,
} = cordwood;
const MOST_CHARTS = 3; // of metrics, at first
const SETTLED_MS = 250; // the slider rests this long before values are asked for

/** Return the place of a step on an axis: its number, or its position if it has none. */
cordwood.stepPlace = function (step, index) {
  return step.number ?? index;
};

/** Draw the view of a run. */
cordwood.views.run = async function (root, route) {
  const run = await fetchResource("run", { signal: route.signal });
  const { steps } = run;
  if (!steps.length) {
    root.append(panel("Run", element("p", "There are no steps here yet.")));
    return;
  }
  let current = startOf(steps, route.query.get("step"));
  let frame = 0;
  let timer = 0;

  /** End a task, so that drawing many steps is cut into short ones. */
  async function pause() {
    await nextTask();
    route.signal.throwIfAborted();
  }

  const axis = route.query.get("axis") === "time" ? "time" : "step";
  const timeline = runTimeline({ steps, axis, value: current, onPick: select });
  const slider = cordwood.slider({
    labels: steps.map((step) => [step.name, stepTime(step)].filter(Boolean).join(" · ")),
    value: current,
    onChange: select,
    label: "Step",
  });
  const facts = element("div");
  await pause();
  const pair = stepPair(steps);
  const matrix = runMatrix({ steps });
  const at = (index) => cordwood.stepPlace(steps[index], index);
  const pickPlace = (x) => {
    const index = steps.findIndex((_, i) => at(i) === x);
    if (index >= 0) select(index);
  };
  await pause();
  const metrics = metricCharts(run, route.query, at(current), pickPlace);
  const norms = runNorms({
    steps,
    onPick: pickPlace,
    marker: at(current),
    initial: choicesOf(route.query),
    onChange: (name, value) => setQuery({ [name]: value }),
  });

  /** Choose a step: what is cheap follows at once, the rest when the slider rests. */
  function select(index) {
    current = index;
    slider.set(index);
    timeline.set(index);
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(showStep);
    clearTimeout(timer);
    timer = setTimeout(settle, SETTLED_MS);
  }

  /** Show the facts of the chosen step. */
  function showStep() {
    const before = stepBefore(steps, current);
    replace(facts, stepFacts(steps, current));
    pair.set(before, current);
    metrics.setMarker(at(current));
    norms.setMarker(at(current));
  }

  /** Show what takes longer, and write the step into the address. */
  function settle() {
    if (route.signal.aborted) return;
    setQuery({ step: steps[current].name });
    matrix.show(current);
  }

  await pause();
  showStep();
  root.append(
    summary(run),
    panel(
      "Timeline",
      timelineTools(steps, axis, (name) => {
        timeline.setAxis(name);
        setQuery({ axis: name === "time" ? name : null });
      }),
      timeline.element,
      legend(steps, select),
      slider,
      element("div.chosen-step", { role: "region", "aria-label": "The chosen step" }, facts, pair.element),
    ),
  );
  await pause();
  root.append(metrics.element, matrix.element, norms.element);
  await pause();
  root.append(stepTable(run, select));
  cordwood.setKeys({
    j: () => select(Math.min(steps.length - 1, current + 1)),
    k: () => select(Math.max(0, current - 1)),
  });
  settle();
  return () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
  };
};

/** Return the position of the step of that name; of the newest whole one, if there is none. */
function startOf(steps, name) {
  const named = steps.findIndex((step) => step.name === name);
  if (named >= 0) return named;
  const whole = steps.findLastIndex((step) => step.state === "whole");
  return whole >= 0 ? whole : steps.length - 1;
}

/** Return the choices of the norms panel that an address holds. */
function choicesOf(query) {
  const names = ["by", "tree", "search", "read"];
  return Object.fromEntries(names.filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
}

/** Return the line at the top: where the run is, how many steps, what needs attention. */
function summary(run) {
  const { steps } = run;
  const sizes = steps.map((step) => step.written_bytes);
  const isKnown = sizes.every((size) => size !== null);
  const written = sizes.reduce((sum, size) => sum + (size ?? 0), 0);
  const linked = steps.reduce((sum, step) => sum + (step.linked_bytes ?? 0), 0);
  return element(
    "section.panel.run-summary",
    { "aria-label": "Run" },
    element("h1", printable(cordwood.lastName(run.root), 120)),
    element(
      "div.summary",
      element("span", counted(steps.length, "step")),
      attention(steps).map(([mark, some]) => element("span", `${formatCount(some.length)} `, stepMark(mark))),
      isKnown && element("span", `${formatBytes(written)} on disk`),
      isKnown && linked > 0 && element("span", `${formatBytes(linked)} saved by hard links`),
      keyPath(run.root),
      !inExport &&
        element(
          "button.button.quiet",
          { title: "List the steps again: the job may have saved some", onclick: () => go(location.hash) },
          "Refresh",
        ),
    ),
    element("p.muted.small", run.policy),
  );
}

/** Return the marks of steps, each with the positions of the steps that have it. */
function attention(steps) {
  const marks = new Set(steps.flatMap(stepMarks));
  const positions = [...steps.keys()];
  return [...marks].map((mark) => [mark, positions.filter((i) => stepMarks(steps[i]).includes(mark))]);
}

/** Return the choice of the axis of the timeline. */
function timelineTools(steps, axis, onChange) {
  if (steps.filter((step) => step.time !== null).length < 2) return null;
  const choices = [
    ["step", "by step"],
    ["time", "by time"],
  ];
  const axes = cordwood.segments("Axis", choices, axis, onChange);
  axes.classList.add("timeline-axis");
  return axes;
}

/** Return the legend of the timeline; the marks lead to their steps, one after another. */
function legend(steps, select) {
  const items = attention(steps).map(([mark, positions]) => {
    let following = 0;
    const names = positions.slice(0, 3).map((i) => printable(steps[i].name, 20));
    const attributes = {
      title: `Go to the next step that is ${mark}`,
      onclick: () => select(positions[following++ % positions.length]),
    };
    const more = positions.length > 3 ? ", …" : "";
    return element("button.button.quiet", attributes, stepMark(mark), ` ${names.join(", ")}${more}`);
  });
  const isKnown = steps.some((step) => step.disk_bytes !== null);
  return element("div.legend.timeline-legend", isKnown && cordwood.sizeKeys("bytes written"), items);
}

/** Return a chart for each chosen metric: `{element, setMarker(x)}`. */
function metricCharts(run, query, marker, onPick) {
  const { steps, metric_names: names } = run;
  const asked = query.get("metrics")?.split(",").map(decodeURIComponent);
  const shown = new Set(asked ? names.filter((name) => asked.includes(name)) : names.slice(0, MOST_CHARTS));
  const area = element("div.metric-charts");
  let charts = [];

  /** Draw the charts of the chosen metrics. */
  function draw() {
    const chosen = names.filter((name) => shown.has(name));
    charts = chosen.map((name) => {
      const pointOf = (step, i) => [cordwood.stepPlace(step, i), step.metrics[name] ?? null];
      const series = [{ name, points: steps.map(pointOf) }];
      return cordwood.charts.lines({ series, xLabel: "step", marker, onPick, label: printable(name, 60) });
    });
    replace(area, charts);
  }

  const boxes = names.map((name) =>
    cordwood.toggle(printable(name, 60), shown.has(name), (isOn) => {
      if (isOn) shown.add(name);
      else shown.delete(name);
      setQuery({ metrics: [...shown].map(encodeURIComponent).join(",") });
      draw();
    }),
  );
  draw();
  const none = !names.length && element("p.muted", "No step has metrics: pass metrics= to manager.save.");
  return {
    element: panel("Metrics", names.length > 1 && element("div.table-tools", boxes), none, area),
    setMarker(x) {
      marker = x;
      for (const chart of charts) chart.setMarker(x);
    },
  };
}

/** Return the panel with all steps as a table. */
function stepTable(run, select) {
  const rows = run.steps.map((step, index) => ({ ...step, index, path: step.name }));
  const number = cordwood.numberColumn;
  const metrics = run.metric_names.slice(0, 4).map((name) =>
    number(`metric ${name}`, printable(name, 24), formatNumber, {
      of: (row) => row.metrics[name],
      width: 8,
      wide: true,
    }),
  );
  const table = cordwood.table({
    columns: [
      {
        name: "step",
        label: "step",
        width: 8,
        value: (row) => row.number ?? row.index,
        cell: (row) => printable(row.name, 40),
      },
      {
        name: "state",
        label: "state",
        width: 12,
        value: (row) => stepMarks(row).join(" "),
        cell: (row) => stepMarks(row).map(stepMark),
      },
      {
        name: "time",
        label: "saved",
        width: 11,
        value: (row) => row.time ?? NaN,
        cell: (row) => stepTime(row),
      },
      {
        name: "kept",
        label: "kept because",
        width: 16,
        grow: true,
        wide: true,
        cell: (row) => printable(row.problem || row.kept.join("; "), 160),
      },
      ...metrics,
      number("disk_bytes", "on disk", formatBytes),
      number("written_bytes", "written", formatBytes, { wide: true }),
      number("linked_bytes", "linked", formatBytes, { wide: true }),
    ],
    rows,
    search: false,
    label: "Steps",
    nouns: ["step", "steps"],
    rowClass: (row) => `state-${row.state}`,
    onOpen: (row) => {
      select(row.index);
      document.querySelector(".run-summary").scrollIntoView({ block: "start" });
    },
  });
  return panel("All steps", element("p.muted.small", "A row moves the slider to its step."), table.element);
}
