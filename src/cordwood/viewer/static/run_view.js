"use strict";
// The view of a run: timeline, slider, the chosen step, metrics, norms, and all steps as a table.
(function (cordwood) {
  const MOST_CHARTS = 3; // of metrics, at first
  const SETTLED_MS = 250; // the slider rests this long before values are asked for

  /** Return the place of a step on an axis: its number, or its position if it has none. */
  cordwood.stepPlace = function (step, index) {
    return step.number ?? index;
  };

  /** Draw the view of a run. */
  cordwood.views.run = async function (root, route) {
    const { element } = cordwood;
    const run = await cordwood.fetchResource("run", { signal: route.signal });
    const { steps } = run;
    if (!steps.length) {
      root.append(cordwood.panel("Run", element("p", {}, "There are no steps here yet.")));
      return;
    }
    let current = startOf(steps, route.query.get("step"));
    let frame = 0;
    let timer = 0;

    /** End a task, so that drawing many steps is cut into short ones. */
    async function pause() {
      await cordwood.nextTask();
      route.signal.throwIfAborted();
    }

    const axis = route.query.get("axis") === "time" ? "time" : "step";
    const timeline = cordwood.runTimeline({ steps, axis, value: current, onPick: select });
    const slider = cordwood.slider({
      labels: steps.map((step) => [step.name, cordwood.stepTime(step)].filter(Boolean).join(" · ")),
      value: current,
      onChange: select,
      label: "Step",
    });
    const facts = element("div", {});
    await pause();
    const pair = cordwood.stepPair(steps);
    const matrix = cordwood.runMatrix({ steps });
    const at = (index) => cordwood.stepPlace(steps[index], index);
    const pickPlace = (x) => {
      const index = steps.findIndex((_, i) => at(i) === x);
      if (index >= 0) select(index);
    };
    await pause();
    const metrics = metricCharts(run, route.query, at(current), pickPlace);
    const norms = cordwood.runNorms({
      steps,
      onPick: pickPlace,
      marker: at(current),
      initial: choicesOf(route.query),
      onChange: (name, value) => cordwood.setQuery({ [name]: value }),
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
      const before = cordwood.stepBefore(steps, current);
      cordwood.replace(facts, cordwood.stepFacts(steps, current));
      pair.set(before, current);
      metrics.setMarker(at(current));
      norms.setMarker(at(current));
    }

    /** Show what takes longer, and write the step into the address. */
    function settle() {
      if (route.signal.aborted) return;
      cordwood.setQuery({ step: steps[current].name });
      matrix.show(current);
    }

    await pause();
    showStep();
    root.append(
      summary(run),
      cordwood.panel(
        "Timeline",
        timelineTools(steps, axis, (name) => {
          timeline.setAxis(name);
          cordwood.setQuery({ axis: name === "time" ? name : null });
        }),
        timeline.element,
        legend(steps, select),
        slider,
        element("div", { class: "chosen-step", role: "region", "aria-label": "The chosen step" }, facts, pair.element),
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
    const { element, counted, formatBytes } = cordwood;
    const { steps } = run;
    const sizes = steps.map((step) => step.written_bytes);
    const isKnown = sizes.every((size) => size !== null);
    const written = sizes.reduce((sum, size) => sum + (size ?? 0), 0);
    const linked = steps.reduce((sum, step) => sum + (step.linked_bytes ?? 0), 0);
    return element(
      "section",
      { class: "panel run-summary", "aria-label": "Run" },
      element("h1", {}, cordwood.printable(run.root.replace(/\/+$/, "").split("/").at(-1) || run.root, 120)),
      element(
        "div",
        { class: "summary" },
        element("span", {}, counted(steps.length, "step")),
        ...attention(steps).map(([mark, some]) =>
          element("span", {}, `${cordwood.formatCount(some.length)} `, cordwood.stepMark(mark)),
        ),
        isKnown && element("span", {}, `${formatBytes(written)} on disk`),
        isKnown && linked > 0 && element("span", {}, `${formatBytes(linked)} saved by hard links`),
        cordwood.keyPath(run.root),
        !cordwood.inExport &&
          element(
            "button",
            {
              type: "button",
              class: "button quiet",
              title: "List the steps again: the job may have saved some",
              onclick: () => cordwood.go(location.hash),
            },
            "Refresh",
          ),
      ),
      element("p", { class: "muted small" }, run.policy),
    );
  }

  /** Return the marks of steps, each with the positions of the steps that have it. */
  function attention(steps) {
    const marked = new Map();
    steps.forEach((step, i) => {
      for (const mark of cordwood.stepMarks(step)) {
        if (!marked.has(mark)) marked.set(mark, []);
        marked.get(mark).push(i);
      }
    });
    return [...marked];
  }

  /** Return the choice of the axis of the timeline. */
  function timelineTools(steps, axis, onChange) {
    const { element } = cordwood;
    if (steps.filter((step) => step.time !== null).length < 2) return null;
    const buttons = [["step", "by step"], ["time", "by time"]].map(([name, label]) =>
      element(
        "button",
        {
          type: "button",
          "aria-pressed": String(name === axis),
          onclick: () => {
            onChange(name);
            buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.value === name)));
          },
          value: name,
        },
        label,
      ),
    );
    return element("div", { class: "segments timeline-axis", role: "group", "aria-label": "Axis" }, buttons);
  }

  /** Return the legend of the timeline; the marks lead to their steps, one after another. */
  function legend(steps, select) {
    const { element } = cordwood;
    const items = attention(steps).map(([mark, positions]) => {
      let following = 0;
      return element(
        "button",
        {
          type: "button",
          class: "button quiet",
          title: `Go to the next step that is ${mark}`,
          onclick: () => select(positions[following++ % positions.length]),
        },
        cordwood.stepMark(mark),
        ` ${positions.slice(0, 3).map((i) => cordwood.printable(steps[i].name, 20)).join(", ")}${positions.length > 3 ? ", …" : ""}`,
      );
    });
    const sizes = steps.some((step) => step.disk_bytes !== null) && [
      element("span", { class: "key-written" }),
      element("span", {}, "bytes written"),
      element("span", { class: "key-linked" }),
      element("span", {}, "linked from earlier steps"),
    ];
    return element("div", { class: "legend timeline-legend" }, sizes, items);
  }

  /** Return a chart for each chosen metric: `{element, setMarker(x)}`. */
  function metricCharts(run, query, marker, onPick) {
    const { element } = cordwood;
    const { steps, metric_names: names } = run;
    const asked = query.get("metrics")?.split(",").map(decodeURIComponent);
    const shown = new Set(asked ? names.filter((name) => asked.includes(name)) : names.slice(0, MOST_CHARTS));
    const area = element("div", { class: "metric-charts" });
    let charts = [];

    /** Draw the charts of the chosen metrics. */
    function draw() {
      charts = names.filter((name) => shown.has(name)).map((name) =>
        cordwood.charts.lines({
          series: [{ name, points: steps.map((step, i) => [cordwood.stepPlace(step, i), step.metrics[name] ?? null]) }],
          xLabel: "step",
          marker,
          onPick,
          label: cordwood.printable(name, 60),
        }),
      );
      cordwood.replace(area, charts);
    }

    const boxes = names.map((name) => {
      const box = element("input", {
        type: "checkbox",
        onchange: () => {
          if (box.checked) shown.add(name);
          else shown.delete(name);
          cordwood.setQuery({ metrics: [...shown].map(encodeURIComponent).join(",") });
          draw();
        },
      });
      box.checked = shown.has(name);
      return element("label", { class: "toggle" }, box, cordwood.printable(name, 60));
    });
    draw();
    const none = !names.length && element("p", { class: "muted" }, "No step has metrics: pass metrics= to manager.save.");
    return {
      element: cordwood.panel("Metrics", names.length > 1 && element("div", { class: "table-tools" }, boxes), none, area),
      setMarker(x) {
        marker = x;
        for (const chart of charts) chart.setMarker(x);
      },
    };
  }

  /** Return the panel with all steps as a table. */
  function stepTable(run, select) {
    const { element, formatBytes, formatNumber } = cordwood;
    const rows = run.steps.map((step, index) => ({ ...step, index, path: step.name }));
    const bytes = (name, label) => ({
      name,
      label,
      align: "end",
      width: 7,
      wide: name !== "disk_bytes",
      value: (row) => row[name] ?? NaN,
      cell: (row) => (row[name] === null ? "" : formatBytes(row[name])),
    });
    const metrics = run.metric_names.slice(0, 4).map((name) => ({
      name: `metric ${name}`,
      label: cordwood.printable(name, 24),
      align: "end",
      width: 8,
      wide: true,
      value: (row) => cordwood.toNumber(row.metrics[name]),
      cell: (row) => (name in row.metrics ? formatNumber(row.metrics[name]) : ""),
    }));
    const table = cordwood.table({
      columns: [
        {
          name: "step",
          label: "step",
          width: 8,
          value: (row) => row.number ?? row.index,
          cell: (row) => cordwood.printable(row.name, 40),
        },
        {
          name: "state",
          label: "state",
          width: 12,
          value: (row) => cordwood.stepMarks(row).join(" "),
          cell: (row) => cordwood.stepMarks(row).map(cordwood.stepMark),
        },
        { name: "time", label: "saved", width: 11, value: (row) => row.time ?? NaN, cell: (row) => cordwood.stepTime(row) },
        {
          name: "kept",
          label: "kept because",
          width: 16,
          grow: true,
          wide: true,
          cell: (row) => cordwood.printable(row.problem || row.kept.join("; "), 160),
        },
        ...metrics,
        bytes("disk_bytes", "on disk"),
        bytes("written_bytes", "written"),
        bytes("linked_bytes", "linked"),
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
    return cordwood.panel("All steps", element("p", { class: "muted small" }, "A row moves the slider to its step."), table.element);
  }
})(globalThis.cordwood);
