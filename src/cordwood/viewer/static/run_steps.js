// The steps of a run as a timeline, and the facts of one step.
const {
  counted, element, facts, formatBytes, formatNumber, hasResource, link, onWidth, printable, replace,
  resourceName, showTooltip, svg, toNumber,
} = cordwood;
const BAR_AREA = { top: 40, height: 72 };
const AXIS = 26;
const SIDE = 10; // pixels left and right of the first and the last bar
const LETTER = 6.4; // width of a letter of the marks

// How each state is marked: a drawing of 10 by 10 units, and a word.
const MARKS = {
  damaged: { word: "damaged", path: "M1 1 9 9M9 1 1 9" },
  unreadable: { word: "unreadable", path: "M1 1 9 9M9 1 1 9M0 5h10" },
  unfinished: { word: "unfinished", path: "M5 1a4 4 0 1 0 .1 0" },
  pinned: { word: "pinned", path: "M2 0v10M2 1h7l-2 2.5 2 2.5h-7" },
};

/** Return the marks of a step: its state unless it is whole, and "pinned". */
cordwood.stepMarks = function (step) {
  const marks = step.state === "whole" ? [] : [step.state];
  return step.pinned ? [...marks, "pinned"] : marks;
};

/** Return the drawing of a mark and its word. */
cordwood.stepMark = function (mark) {
  return element(
    "span",
    { class: `step-mark mark-${mark}` },
    svg(
      "svg.step-mark-shape",
      { viewBox: "-1 -1 12 12", "aria-hidden": "true" },
      svg("path", { d: MARKS[mark].path }),
    ),
    MARKS[mark].word,
  );
};

/** Return the time of a step as local text, to the minute; "" if it is unknown. */
cordwood.stepTime = function (step) {
  if (step.time === null) return "";
  const date = new Date(step.time * 1000);
  if (Number.isNaN(date.getTime())) return "";
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
};

/**
 * Return a timeline: `{element, set(index), setAxis(axis)}`.
 *
 * steps: of the resource `run`; at least one. axis: "step" or "time".
 * onPick(index): follows a click on a step.
 */
cordwood.runTimeline = function ({ steps, axis, value, onPick }) {
  const most = Math.max(1, ...steps.map((step) => step.disk_bytes ?? 0));
  let places = []; // the x of each step
  let width = 0;
  let current = value;

  const bars = svg("g");
  const cursor = svg("g.timeline-cursor");
  const hover = svg("path.timeline-hover");
  const picture = svg(
    "svg.timeline",
    {
      height: BAR_AREA.top + BAR_AREA.height + AXIS,
      role: "img",
      "aria-label": `Timeline of ${counted(steps.length, "step")}; the slider below moves along it.`,
      onpointermove: (event) => showStep(nearest(event), event),
      onpointerleave: () => showStep(-1),
      onclick: (event) => onPick(nearest(event)),
    },
    pattern(),
    bars,
    hover,
    cursor,
  );
  const box = element("div.chart-area.timeline-area", picture);

  /** Return the hatching of linked bytes. */
  function pattern() {
    return svg(
      "defs",
      svg(
        "pattern",
        { id: "linked", width: 5, height: 5, patternUnits: "userSpaceOnUse" },
        svg("rect.linked-ground", { width: 5, height: 5 }),
        svg("path.linked-lines", { d: "M0 5 5 0M-1 1 1 -1M4 6 6 4" }),
      ),
    );
  }

  /** Return where the steps are on the axis, from 0 to 1. */
  function shares() {
    const raw = steps.map((step) => (axis === "time" ? step.time : step.number));
    const usable = raw.filter((number) => number !== null && Number.isFinite(number));
    const low = Math.min(...usable);
    const span = Math.max(...usable) - low;
    const last = Math.max(1, steps.length - 1);
    if (usable.length < 2 || !(span > 0)) return steps.map((_, i) => (steps.length > 1 ? i / last : 0.5));
    return raw.map((number, i) => (number === null ? i / last : (number - low) / span));
  }

  /** Draw everything. */
  function draw(pixels = width) {
    width = pixels;
    if (!width) return;
    picture.setAttribute("width", width);
    places = shares().map((share) => SIDE + share * (width - 2 * SIDE));
    const sorted = [...places].sort((x, y) => x - y);
    const gaps = sorted.slice(1).map((x, i) => x - sorted[i]);
    const typical = gaps.length ? gaps.sort((x, y) => x - y)[gaps.length >> 1] : 20;
    const thickness = Math.max(1.5, Math.min(18, typical * 0.72));
    replace(bars, drawBars(thickness), drawMarks(), drawAxis());
    drawCursor();
  }

  /** Return the bars: one path for all bytes of a kind. */
  function drawBars(thickness) {
    const base = BAR_AREA.top + BAR_AREA.height;
    const paths = { written: [], linked: [], unknown: [], damaged: [], unfinished: [] };
    steps.forEach((step, i) => {
      const x = places[i] - thickness / 2;
      const bar = (bottom, height) =>
        `M${x.toFixed(1)} ${bottom.toFixed(1)}v${-height.toFixed(1)}h${thickness.toFixed(1)}v${height.toFixed(1)}z`;
      const size = step.disk_bytes;
      const height = size === null ? BAR_AREA.height * 0.5 : Math.max(2, (size / most) * BAR_AREA.height);
      const broken = step.state !== "whole";
      if (broken) paths[step.state === "unfinished" ? "unfinished" : "damaged"].push(bar(base, height));
      else if (size === null) paths.unknown.push(bar(base, height));
      else {
        const linked = size ? (height * (step.linked_bytes ?? 0)) / size : 0;
        paths.written.push(bar(base, height - linked));
        if (linked > 0.5) paths.linked.push(bar(base - height + linked, linked));
      }
    });
    return Object.entries(paths).map(
      ([name, parts]) => parts.length > 0 && svg("path", { class: `bar-${name}`, d: parts.join("") }),
    );
  }

  /** Return the marks above the bars, with their words where there is room. */
  function drawMarks() {
    const drawn = [];
    const rows = [-Infinity, -Infinity]; // where the last words of each of two rows end
    steps.forEach((step, i) => {
      for (const mark of cordwood.stepMarks(step)) {
        const text = `${MARKS[mark].word} ${printable(step.name, 12)}`;
        const wide = 14 + text.length * LETTER;
        const atEnd = places[i] + wide > width;
        const left = atEnd ? places[i] - wide + 5 : places[i] - 5;
        let row = rows.findIndex((end) => left > end + 6);
        const hasWords = row >= 0;
        if (row < 0) row = 1;
        else rows[row] = left + wide;
        const y = BAR_AREA.top - 16 - 18 * row;
        drawn.push(
          svg(
            "g",
            { class: `mark-${mark}`, transform: `translate(${(places[i] - 5).toFixed(1)} ${y})` },
            svg("path", { d: MARKS[mark].path }),
            svg("path.mark-stem", { d: `M5 12V${16 + 18 * row}` }),
          ),
        );
        if (hasWords) {
          const x = atEnd ? places[i] - 9 : places[i] + 9;
          const anchor = atEnd ? "end" : "start";
          drawn.push(
            svg("text", { class: `mark-words mark-${mark}`, x, y: y + 9, "text-anchor": anchor }, text),
          );
        }
      }
    });
    return drawn;
  }

  /** Return the line below the bars, and the names of a few steps, or their times. */
  function drawAxis() {
    const base = BAR_AREA.top + BAR_AREA.height;
    const drawn = [svg("path.axis-line", { d: `M0 ${base + 0.5}H${width}` })];
    const roomForOne = axis === "time" ? 120 : 70;
    let free = -Infinity;
    const last = steps.length - 1;
    steps.forEach((step, i) => {
      const text = axis === "time" ? cordwood.stepTime(step) : printable(step.name, 14);
      if (!text) return;
      const near = places[last] - places[i] < roomForOne;
      if (i !== last && (places[i] < free || near)) return;
      free = places[i] + roomForOne;
      const half = (text.length * LETTER) / 2;
      const x = Math.max(half, Math.min(width - half, places[i]));
      drawn.push(svg("path.axis-line", { d: `M${places[i].toFixed(1)} ${base}v4` }));
      drawn.push(svg("text.axis-words", { x, y: base + 17, "text-anchor": "middle" }, text));
    });
    return drawn;
  }

  /** Draw the cursor at the chosen step. */
  function drawCursor() {
    if (!width) return;
    const x = places[current].toFixed(1);
    const base = BAR_AREA.top + BAR_AREA.height;
    replace(
      cursor,
      svg("path.cursor-line", { d: `M${x} ${BAR_AREA.top - 4}V${base}` }),
      svg("path.cursor-head", { d: `M${x} ${base}l-6 9h12z` }),
    );
  }

  /** Return the position of the step nearest to the pointer. */
  function nearest(event) {
    return cordwood.nearestTo(event, picture, places);
  }

  /** Show the step under the pointer; -1 for none. */
  function showStep(i, event) {
    hover.setAttribute(
      "d",
      i < 0 ? "" : `M${places[i].toFixed(1)} ${BAR_AREA.top - 4}v${BAR_AREA.height + 4}`,
    );
    if (i < 0) showTooltip(null);
    else showTooltip(tooltipLines(steps[i]), event.clientX, event.clientY);
  }

  onWidth(box, draw);
  return {
    element: box,
    set(index) {
      current = index;
      drawCursor();
    },
    setAxis(name) {
      axis = name;
      draw();
    },
  };
};

/** Return what the tooltip says of a step. */
function tooltipLines(step) {
  const marks = cordwood.stepMarks(step).map((mark) => MARKS[mark].word);
  const metrics = Object.entries(step.metrics)
    .slice(0, 6)
    .map(([name, number]) => `${printable(name, 40)} ${formatNumber(number)}`);
  return [
    [`step ${printable(step.name, 40)}`, ...marks].join(" · "),
    cordwood.stepTime(step),
    step.disk_bytes === null ? "" : cordwood.stepSizes(step),
    ...metrics,
  ].filter(Boolean);
}

/** Return the size of a step in words. */
cordwood.stepSizes = function (step) {
  const total = formatBytes(step.disk_bytes);
  if (!step.linked_bytes) return `${total} on disk`;
  const { written_bytes: written, linked_bytes: linked } = step;
  return `${total} on disk: ${formatBytes(written)} written, ${formatBytes(linked)} linked`;
};

/** Return the position of the nearest earlier step that can be opened; -1 if there is none. */
cordwood.stepBefore = function (steps, index) {
  return steps.findLastIndex((step, i) => i < index && step.state === "whole");
};

/** Return the link to the difference of two steps, if it can be had. */
function differenceLink(before, after, label) {
  const held = cordwood.heldResource(["all", "sample", "digests"], "diff", before.name, after.name);
  return held && element("a.button", { href: link("diff", [before.name, after.name]) }, label);
}

/** Return the facts of a step as an element. */
cordwood.stepFacts = function (steps, index) {
  const step = steps[index];
  const before = cordwood.stepBefore(steps, index);
  return element(
    "div.step-facts",
    element(
      "div.step-head",
      element("h3", `Step ${printable(step.name, 60)}`),
      cordwood.stepMarks(step).map(cordwood.stepMark),
    ),
    step.problem && element("p.step-problem", { role: "note" }, printable(step.problem, 2000)),
    links(step, steps[before]),
    facts([
      ...metrics(step, steps[before]),
      ["Saved", cordwood.stepTime(step)],
      ["Format", step.format],
      ["Kept because", printable(step.kept.join("; "), 500)],
    ]),
    sizes(step, Math.max(...steps.map((each) => each.disk_bytes ?? 0))),
  );
};

/** Return the links of a step, as far as it can be opened. */
function links(step, before) {
  if (step.state !== "whole") return null;
  const open = hasResource(resourceName("checkpoint", step.name));
  return element(
    "p.actions",
    open && element("a.button", { href: link("checkpoint", [step.name]) }, "Open this step"),
    before && differenceLink(before, step, `Difference with step ${printable(before.name, 20)}`),
    !open && element("span.muted", "This file does not hold the leaves of this step."),
  );
}

/** Return the metrics of a step, each with its change since the step before. */
function metrics(step, before) {
  return Object.entries(step.metrics).map(([name, value]) => {
    const change = toNumber(value) - toNumber(before?.metrics[name]);
    const sign = change > 0 ? "+" : "";
    const words = Number.isFinite(change) ? ` ${sign}${formatNumber(change)}` : "";
    return [printable(name, 60), [formatNumber(value), words && element("span.muted.small", words)]];
  });
}

/** Return what the colours of bytes mean: those written by a step, and those of earlier steps. */
cordwood.sizeKeys = function (written, linked = "") {
  return [
    element("span.key-written"),
    element("span", written),
    element("span.key-linked"),
    element("span", `${linked}linked from earlier steps`),
  ];
};

/** Return the bytes of a step as a bar: written and linked, beside the largest step. */
function sizes(step, most) {
  if (step.disk_bytes === null) {
    return element("p.muted", "Sizes are not known: the run is in an object store.");
  }
  const part = (name, bytes) => {
    const width = `${(100 * (bytes ?? 0)) / Math.max(1, most)}%`;
    return element("span", { class: `size-${name}`, style: { width } });
  };
  return element(
    "div.step-sizes",
    element(
      "div.size-bar",
      { role: "img", "aria-label": cordwood.stepSizes(step) },
      part("written", step.written_bytes),
      part("linked", step.linked_bytes),
    ),
    element(
      "div.legend",
      element("span", `${formatBytes(step.disk_bytes)} on disk:`),
      cordwood.sizeKeys(`${formatBytes(step.written_bytes)} written`, `${formatBytes(step.linked_bytes)} `),
    ),
  );
}

/** Return a form that opens the difference of any two steps: `{element, set(before, after)}`. */
cordwood.stepPair = function (steps) {
  const choices = steps.map((step, i) => {
    const note = step.state === "whole" ? "" : ` (${step.state})`;
    return [i, printable(step.name, 40) + note, step.state !== "whole"];
  });
  const first = cordwood.select("Difference from step", choices, null, follow);
  const second = cordwood.select("Difference to step", choices, null, follow);
  const result = element("span");

  /** Make the link follow the two steps. */
  function follow() {
    const [before, after] = [steps[first.value], steps[second.value]];
    const isPossible = before && after && before !== after;
    const label = "Open the difference";
    const open = isPossible && differenceLink(before, after, label);
    const note = element("span.muted", { role: "status" }, isPossible && !open && "not in this file");
    replace(result, open || element("a.button", label), note);
  }

  const word = (text) => element("span.muted", text);
  const box = element("div.step-pair", word("Or compare step"), first, word("with"), second, result);
  return {
    element: box,
    set(before, after) {
      if (before >= 0) first.value = String(before);
      second.value = String(after);
      follow();
    },
  };
};
