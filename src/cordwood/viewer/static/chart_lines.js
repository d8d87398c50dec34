// The chart of numbers over steps or time.
const { append, counted, element, formatNumber, limits, onWidth, printable, replace, svg, toNumber } = cordwood;
const HEIGHT = 240;
const PLOT = { top: 10, right: 24, bottom: 34, left: 58 };
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const MOST_IN_TOOLTIP = 8;
const MOST_LABELS = 6; // series that are labelled at the end of their line

/**
 * Return a line chart of series `{name, points: [[x, y or null], ..]}`.
 * Null and numbers that are not finite interrupt a line; the latter are marked by a cross.
 * Series differ by colour, dash and label. The names below the chart hide and show them.
 * marker: an x that is marked; `element.setMarker(x)` moves it. onPick(x) follows a click, Enter.
 */
cordwood.charts.lines = function (options) {
  const { xLabel = "", yLabel = "", onPick = null, label = "Lines" } = options;
  const series = options.series.map((one, i) => ({
    name: printable(one.name, 60),
    points: one.points.map(([x, y]) => [toNumber(x), y === null ? null : toNumber(y)]),
    colour: `var(--chart-${(i % 8) + 1})`,
    dash: DASHES[Math.floor(i / 8 + (i % 8) / 2) % DASHES.length],
    hidden: false,
  }));
  const xs = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((x, y) => x - y);
  let logarithmic = Boolean(options.logarithmic);
  let marker = options.marker ?? null;
  let picked = -1;
  let width = 0;
  let scales = null;

  const plot = svg("svg.lines", {
    role: "img",
    tabindex: 0,
    height: HEIGHT,
    "aria-label": summary(),
    onpointermove: (event) => pick(nearest(event), event),
    onpointerleave: () => pick(-1),
    onblur: () => pick(-1),
    onclick: (event) => onPick?.(xs[nearest(event)]),
    onkeydown: onKey,
  });
  plot.classList.toggle("picks", onPick !== null);
  const area = element("div.chart-area", plot);
  const scale = cordwood.toggle("log scale", logarithmic, (isOn) => {
    logarithmic = isOn;
    draw();
  });
  const frame = cordwood.chartFrame(label, scale, area, legend());

  /** Return the chart in words. */
  function summary() {
    const range = xs.length ? ` from ${formatNumber(xs[0])} to ${formatNumber(xs.at(-1))}` : "";
    return `${label}: ${counted(series.length, "line")} over ${xLabel || "x"}${range}.`;
  }

  /** Return buttons with the names of the series, which hide and show them. */
  function legend() {
    const buttons = series.map((one) => {
      const line = { d: "M0 4H22", stroke: one.colour, "stroke-dasharray": one.dash };
      const sign = svg("svg", { width: 22, height: 8, "aria-hidden": "true" }, svg("path.line", line));
      const button = element("button", { "aria-pressed": "true", onclick: hide }, sign, one.name);

      /** Hide the line, or show it again. */
      function hide() {
        one.hidden = !one.hidden;
        button.setAttribute("aria-pressed", String(!one.hidden));
        draw();
      }

      return button;
    });
    return element("div.legend.lines-legend", buttons);
  }

  /** Return the series that are not hidden. */
  function shownSeries() {
    return series.filter((one) => !one.hidden);
  }

  /** Return the scales: functions from values to pixels, and their ticks. */
  function computeScales() {
    const shows = (value) => value !== null && Number.isFinite(value) && !(logarithmic && value <= 0);
    const values = shownSeries().flatMap((one) => one.points.map(([, y]) => y));
    let [low, high] = limits(values.filter(shows));
    if (low > high) [low, high] = logarithmic ? [0.1, 1] : [0, 1];
    if (low === high) [low, high] = logarithmic ? [low / 2, high * 2] : around(low);
    const y = logarithmic ? Math.log10 : (value) => value;
    const [bottom, top] = [y(low), y(high)];
    const room = HEIGHT - PLOT.top - PLOT.bottom;
    const [first, last] = [xs[0] ?? 0, xs.at(-1) ?? 1];
    const span = width - PLOT.left - rightRoom();
    return {
      x: (value) => PLOT.left + (first === last ? 0.5 : (value - first) / (last - first)) * span,
      // Halves, since the distance of the ends may be larger than any number.
      y: (value) => PLOT.top + room * (1 - (y(value) / 2 - bottom / 2) / (top / 2 - bottom / 2)),
      xTicks: ticks(first, last, Math.max(2, Math.floor(span / 90)), true),
      yTicks: logarithmic ? powers(low, high) : ticks(low, high, 5, false),
      shows,
      right: PLOT.left + span,
    };
  }

  /** Return the room for labels at the end of the lines. */
  function rightRoom() {
    const shown = shownSeries();
    if (shown.length > MOST_LABELS || shown.length < 2 || width < 480) return PLOT.right;
    return Math.min(170, 16 + 6.4 * Math.max(...shown.map((one) => Math.min(24, one.name.length))));
  }

  /** Draw everything. */
  function draw(pixels = width) {
    width = pixels;
    if (!width) return;
    scales = computeScales();
    plot.setAttribute("width", width);
    replace(plot, axes(), shownSeries().map(line), endLabels(), cursor());
  }

  /** Return a line of the grid, of an axis or of the cursor. */
  function straight(name, x1, x2, y1, y2) {
    return svg(`line.${name}`, { x1, x2, y1, y2 });
  }

  /** Return a text of an axis. */
  function axisText(name, x, y, text, anchor = "middle") {
    return svg(`text.${name}`, { x, y, "text-anchor": anchor }, text);
  }

  /** Return the axes with their ticks. */
  function axes() {
    const bottom = HEIGHT - PLOT.bottom;
    const { right, xTicks, yTicks } = scales;
    const upright = axisText("axis-label", 0, 0, yLabel);
    upright.setAttribute("transform", `translate(11 ${(PLOT.top + bottom) / 2}) rotate(-90)`);
    return [
      yTicks.map((value) => [
        straight("grid", PLOT.left, right, scales.y(value), scales.y(value)),
        axisText("tick", PLOT.left - 8, scales.y(value) + 4, formatNumber(value), "end"),
      ]),
      xTicks.map((value) => axisText("tick", scales.x(value), bottom + 16, formatNumber(value))),
      straight("axis-line", PLOT.left, right, bottom, bottom),
      axisText("axis-label", (PLOT.left + right) / 2, HEIGHT - 3, xLabel),
      upright,
    ];
  }

  /** Return the line of a series, and a cross for each number that is not finite. */
  function line(one) {
    let path = "";
    let isDown = false;
    const dots = [];
    let crosses = ""; // one path: there may be hundreds
    one.points.forEach(([x, y], i) => {
      if (scales.shows(y)) {
        path += `${isDown ? "L" : "M"}${scales.x(x).toFixed(1)} ${scales.y(y).toFixed(1)}`;
        const alone = !isDown && !scales.shows(one.points[i + 1]?.[1] ?? null);
        if (alone) dots.push(svg("circle", { cx: scales.x(x), cy: scales.y(y), r: 3, fill: one.colour }));
      } else if (y !== null && !Number.isFinite(y)) {
        const [cx, cy] = [scales.x(x), PLOT.top + 6];
        crosses += `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8`;
      }
      isDown = scales.shows(y);
    });
    return [
      svg("path.line", { d: path, stroke: one.colour, "stroke-dasharray": one.dash }),
      dots,
      crosses && svg("path.cross", { d: crosses }),
    ];
  }

  /** Return the names at the ends of the lines, moved so that they do not overlap. */
  function endLabels() {
    if (rightRoom() === PLOT.right) return null;
    const labels = shownSeries()
      .map((one) => {
        const end = one.points.findLast(([, y]) => scales.shows(y));
        return end && { one, y: scales.y(end[1]) };
      })
      .filter(Boolean)
      .sort((first, second) => first.y - second.y);
    labels.forEach((each, i) => {
      if (i) each.y = Math.max(each.y, labels[i - 1].y + 14);
    });
    return labels.map(({ one, y }) =>
      svg("text.end-label", { x: scales.right + 6, y: y + 4 }, one.name.slice(0, 24)),
    );
  }

  /** Return the lines of the marker and of the pointer. */
  function cursor() {
    const upright = (name, x) => straight(name, scales.x(x), scales.x(x), PLOT.top, HEIGHT - PLOT.bottom);
    return [
      marker !== null && xs.length > 0 && upright("marker", marker),
      picked >= 0 && upright("pointer", xs[picked]),
    ];
  }

  /** Return the position of the x that is nearest to the pointer. */
  function nearest(event) {
    return scales ? cordwood.nearestTo(event, plot, xs.map(scales.x)) : -1;
  }

  /** Show the values at an x; -1 shows none. */
  function pick(i, event) {
    if (i !== picked) {
      picked = i;
      plot.querySelector(".pointer")?.remove();
      if (scales && picked >= 0) append(plot, cursor()[1]);
    }
    frame.show(i < 0 || !xs.length ? null : valuesAt(xs[i]), event, " · ");
  }

  /** Return the values at an x as lines of text, the greatest first. */
  function valuesAt(x) {
    const values = shownSeries()
      .map((one) => ({ name: one.name, y: one.points.find((point) => point[0] === x)?.[1] ?? null }))
      .filter(({ y }) => y !== null)
      .sort((first, second) => second.y - first.y);
    const more = values.length - MOST_IN_TOOLTIP;
    return [
      `${xLabel} ${formatNumber(x)}`.trim(),
      ...values.slice(0, MOST_IN_TOOLTIP).map(({ name, y }) => `${name}: ${formatNumber(y)}`),
      ...(more > 0 ? [`and ${more} more`] : []),
    ];
  }

  /** Follow a key. */
  function onKey(event) {
    const step = (by) => () => xs.length && pick(Math.max(0, Math.min(xs.length - 1, picked + by)));
    cordwood.followKey(event, {
      ArrowLeft: step(-1),
      ArrowRight: step(1),
      Enter: () => picked >= 0 && onPick?.(xs[picked]),
    });
  }

  onWidth(area, draw);
  frame.element.setMarker = (x) => {
    marker = x;
    plot.querySelector(".marker")?.remove();
    if (scales) append(plot, cursor()[0]);
  };
  return frame.element;
};

/** Return a range around a number, also around one of which 0.5 is no part. */
function around(value) {
  const margin = Math.max(0.5, Math.abs(value) / 100);
  return [value - margin, value + margin];
}

/** Return round numbers from low to high, about `count` of them. */
function ticks(low, high, count, whole) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const size = whole && Number.isInteger(low) && Number.isInteger(high) ? Math.max(1, step) : step;
  const result = [];
  for (let i = Math.ceil(low / size); i * size <= high + size * 1e-9; i++) result.push(i * size);
  return result.map((value) => Number(value.toPrecision(12)));
}

/** Return the powers of ten from low to high; the ends if there are fewer than two. */
function powers(low, high) {
  const first = Math.ceil(Math.log10(low));
  const last = Math.floor(Math.log10(high));
  if (last - first < 1) return [low, high];
  const every = Math.ceil((last - first + 1) / 6);
  const result = [];
  for (let power = first; power <= last; power += every) result.push(10 ** power);
  return result;
}
