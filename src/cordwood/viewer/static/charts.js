// What charts share: colours, widths, the pointer; and the histogram.
const {
  counted, element, formatCount, formatNumber, formatShare, nextTask, replace, showTooltip, svg, toNumber,
} = cordwood;
const DRAWING_MS = 12; // of charts in one task
const HEIGHT = 240;
let palette = null;
let drawingMs = 0; // of this task so far

/** Return the colours of the theme: `text`, `muted`, `panel`, `line`, `accent`, `chart` (8). */
cordwood.palette = function () {
  if (palette) return palette;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => parse(style.getPropertyValue(`--${name}`));
  palette = {
    chart: [1, 2, 3, 4, 5, 6, 7, 8].map((i) => colour(`chart-${i}`)),
    low: colour("scale-low"),
    high: colour("scale-high"),
  };
  for (const name of ["text", "muted", "panel", "line", "accent", "damaged", "background"]) {
    palette[name] = colour(name);
  }
  return palette;
};

/** Forget the colours and draw every chart again: the theme has changed. */
cordwood.themeChanged = function () {
  palette = null;
  document.dispatchEvent(new Event("cordwood-theme"));
};

/**
 * Call `draw(width)` when the width of an element changes, and `drawTheme()` when the theme does,
 * until the element is removed from the page or the view is left.
 */
cordwood.onWidth = function (element, draw, drawTheme = null) {
  const ending = new AbortController();
  const { signal } = ending;
  let last = 0;
  const observer = new ResizeObserver(async () => {
    if (!element.isConnected) return last && ending.abort(); // removed; or not yet on the page
    const width = Math.floor(element.clientWidth);
    if (!width || width === last) return;
    last = width;
    if (drawingMs > DRAWING_MS) await nextTask();
    if (width !== last || signal.aborted) return;
    const begin = performance.now();
    if (!drawingMs) nextTask().then(() => (drawingMs = 0));
    draw(width);
    drawingMs += performance.now() - begin;
  });
  observer.observe(element);
  signal.addEventListener("abort", () => observer.disconnect());
  cordwood.viewSignal?.addEventListener("abort", () => ending.abort(), { signal });
  if (drawTheme) document.addEventListener("cordwood-theme", drawTheme, { signal });
};

/** Return `[red, green, blue]` of the theme's colour in `light-dark(#rrggbb, #rrggbb)`. */
function parse(text) {
  const [light, dark] = text.match(/[\da-f]{6}/g).map((digits) => Number.parseInt(digits, 16));
  const number = document.documentElement.dataset.theme === "dark" ? dark : light;
  return [number >> 16, (number >> 8) & 255, number & 255];
}

/** Return the colour between two colours: 0 is the first, 1 the second. */
cordwood.mix = function (first, second, share) {
  return first.map((value, i) => Math.round(value + (second[i] - value) * share));
};

/** Return the CSS text of a colour. */
cordwood.css = function (colour, alpha = 1) {
  return alpha === 1 ? `rgb(${colour.join(" ")})` : `rgb(${colour.join(" ")} / ${alpha})`;
};

/** Return the colour of a share from 0 to 1. */
cordwood.scaleColour = function (share) {
  const { low, high } = cordwood.palette();
  return cordwood.mix(low, high, Math.max(0, Math.min(1, share)));
};

/** Return black or white, whichever is readable on a colour. */
cordwood.inkOn = function ([red, green, blue]) {
  const linear = [red, green, blue].map((value) => (value / 255) ** 2.2);
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return light > 0.18 ? "#000000" : "#ffffff";
};

/** Give a canvas a size in CSS pixels; return its context, scaled to the screen. */
cordwood.sizedContext = function (canvas, width, height) {
  const ratio = Math.min(3, globalThis.devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
};

/**
 * Return the frame of a chart: `{element, show(lines, event)}`.
 * `show` says lines of text beside the pointer of an event, or else below the chart; null hides them.
 */
cordwood.chartFrame = function (title, tools, ...parts) {
  const readout = element("span.readout", { "aria-live": "polite" });
  const head = title && element("figcaption.chart-head", element("span", title), tools);

  /** Say lines of text, or nothing. */
  function show(lines, event = null, separator = ": ") {
    showTooltip(event && lines, event?.clientX, event?.clientY);
    if (!event) replace(readout, lines?.join(separator));
  }

  return { element: element("figure.chart", head, parts, readout), show };
};

/** Return the position of the place, in pixels from the left of a drawing, that is nearest to the pointer. */
cordwood.nearestTo = function (event, drawing, places) {
  const at = event.clientX - drawing.getBoundingClientRect().left;
  const distances = places.map((place) => Math.abs(place - at));
  return distances.indexOf(distances.reduce((x, y) => Math.min(x, y), Infinity));
};

/** Return the least and the greatest finite value. */
cordwood.limits = function (values) {
  const finite = values.filter((value) => value !== null && Number.isFinite(value));
  const least = finite.reduce((x, y) => Math.min(x, y), Infinity);
  return [least, finite.reduce((x, y) => Math.max(x, y), -Infinity)];
};

/** Return a box to tick, with its label. */
cordwood.toggle = function (label, isOn, onChange) {
  const box = element("input", { type: "checkbox", onchange: () => onChange(box.checked) });
  box.checked = isOn;
  return element("label.toggle", box, label);
};

/**
 * Return a histogram: `counts` of bins of equal width from `low` to `high`.
 * The pointer and the arrow keys show the range and the count of a bin.
 * size: the number of all values; some of them may not be read or not be finite.
 */
cordwood.charts.histogram = function ({ counts, low, high, label, size = null }) {
  const [from, to] = [toNumber(low), toNumber(high)];
  const total = counts.reduce((x, y) => x + y, 0);
  if (from === to) {
    const which = total === size ? "Every value" : "Every finite value that was read";
    return element("p.chart", `${which} is ${formatNumber(from)}.`);
  }
  const most = Math.max(1, ...counts);
  const last = counts.length - 1;
  let picked = -1;

  const bars = counts.map((_, i) => svg("rect.bar", { x: i + 0.04, width: 0.92 }));
  const cursor = svg("rect.bar-cursor", { y: 0, height: HEIGHT, width: 1 });
  const drawing = svg(
    "svg.histogram-bars",
    {
      viewBox: `0 0 ${counts.length} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      tabindex: 0,
      "aria-label": summary(),
      onpointermove: (event) => {
        const { left, width } = drawing.getBoundingClientRect();
        pick(Math.floor(((event.clientX - left) / width) * counts.length), event);
      },
      onpointerleave: () => pick(null),
      onblur: () => pick(null),
      onkeydown: (event) =>
        cordwood.followKey(event, {
          ArrowLeft: () => pick(picked - 1),
          ArrowRight: () => pick(picked + 1),
        }),
    },
    cursor,
    bars,
  );
  const ends = [from, (from + to) / 2, to].map((x) => element("span", formatNumber(x)));
  const scale = cordwood.toggle("log counts", false, draw);
  const frame = cordwood.chartFrame(label, scale, drawing, element("div.axis", ends));
  /** Return the chart in words. */
  function summary() {
    const [start, stop] = rangeOf(counts.indexOf(Math.max(...counts)));
    return (
      `${label}: ${formatCount(total)} values from ${formatNumber(from)} to ${formatNumber(to)}, ` +
      `most of them from ${formatNumber(start)} to ${formatNumber(stop)}.`
    );
  }

  /** Return the range of a bin. */
  function rangeOf(i) {
    const width = (to - from) / counts.length;
    return [from + i * width, from + (i + 1) * width];
  }

  /** Draw the bars; a count of at least one is always visible. */
  function draw(isLogarithmic) {
    counts.forEach((count, i) => {
      const share = isLogarithmic ? Math.log1p(count) / Math.log1p(most) : count / most;
      const height = count ? Math.max(2, share * (HEIGHT - 8)) : 0;
      bars[i].setAttribute("y", HEIGHT - height);
      bars[i].setAttribute("height", height);
    });
  }

  /** Show the range and the count of a bin; null shows none. */
  function pick(i, event) {
    cursor.setAttribute("class", i === null ? "bar-cursor" : "bar-cursor shown");
    if (i === null) {
      picked = -1;
      frame.show(null);
      return;
    }
    picked = Math.max(0, Math.min(last, i));
    cursor.setAttribute("x", picked);
    const [start, stop] = rangeOf(picked);
    const count = `${counted(counts[picked], "value")} (${formatShare(counts[picked] / total)})`;
    frame.show([`${formatNumber(start)} to ${formatNumber(stop)}`, count], event);
  }

  frame.element.classList.add("histogram");
  draw(false);
  return frame.element;
};
