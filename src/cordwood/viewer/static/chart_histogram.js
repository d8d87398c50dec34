"use strict";
// The chart of how often values occur.
(function (cordwood) {
  const HEIGHT = 240;

  /**
   * Return a histogram: `counts` of bins of equal width from `low` to `high`.
   * The pointer and the arrow keys show the range and the count of a bin.
   * size: the number of all values; some of them may not be read or not be finite.
   */
  cordwood.charts.histogram = function ({ counts, low, high, label, size = null }) {
    const { element, svg, formatNumber } = cordwood;
    const from = cordwood.toNumber(low);
    const to = cordwood.toNumber(high);
    const total = counts.reduce((x, y) => x + y, 0);
    if (from === to) {
      const which = total === size ? "Every value" : "Every finite value that was read";
      return element("p", { class: "chart" }, `${which} is ${formatNumber(from)}.`);
    }
    const most = Math.max(1, ...counts);
    let logarithmic = false;
    let picked = -1;

    const bars = counts.map(() => svg("rect", { class: "bar" }));
    const cursor = svg("rect", { class: "bar-cursor", y: 0, height: HEIGHT, width: 1 });
    const drawing = svg(
      "svg",
      {
        viewBox: `0 0 ${Math.max(1, counts.length)} ${HEIGHT}`,
        preserveAspectRatio: "none",
        class: "histogram-bars",
        role: "img",
        tabindex: 0,
        "aria-label": summary(),
        onpointermove: (event) => {
          const { left, width } = drawing.getBoundingClientRect();
          const i = Math.floor(((event.clientX - left) / width) * counts.length);
          pick(Math.max(0, Math.min(counts.length - 1, i)), event.clientX, event.clientY);
        },
        onpointerleave: () => pick(-1),
        onblur: () => pick(-1),
        onkeydown: (event) => {
          const steps = { ArrowLeft: -1, ArrowRight: 1 };
          if (!(event.key in steps)) return;
          event.preventDefault();
          event.stopPropagation();
          pick(Math.max(0, Math.min(counts.length - 1, picked + steps[event.key])));
        },
      },
      cursor,
      bars,
    );
    const readout = element("span", { class: "readout", "aria-live": "polite" });
    const toggle = element("input", {
      type: "checkbox",
      onchange: () => {
        logarithmic = toggle.checked;
        draw();
      },
    });
    const middle = (from + to) / 2;
    const box = element(
      "figure",
      { class: "chart histogram" },
      element(
        "figcaption",
        { class: "chart-head" },
        element("span", {}, label ?? "Histogram"),
        element("label", { class: "toggle" }, toggle, "log counts"),
      ),
      drawing,
      element(
        "div",
        { class: "axis" },
        [from, middle, to].map((x) => element("span", {}, formatNumber(x))),
      ),
      readout,
    );

    /** Return the chart in words. */
    function summary() {
      const peak = counts.indexOf(Math.max(...counts));
      const [start, stop] = rangeOf(peak);
      return (
        `${label ?? "Histogram"}: ${cordwood.formatCount(total)} values from ` +
        `${formatNumber(from)} to ${formatNumber(to)}, most of them from ` +
        `${formatNumber(start)} to ${formatNumber(stop)}.`
      );
    }

    /** Return the range of a bin. */
    function rangeOf(i) {
      const width = (to - from) / counts.length;
      return [from + i * width, from + (i + 1) * width];
    }

    /** Draw the bars; a count of at least one is always visible. */
    function draw() {
      counts.forEach((count, i) => {
        const share = logarithmic ? Math.log1p(count) / Math.log1p(most) : count / most;
        const height = count ? Math.max(2, share * (HEIGHT - 8)) : 0;
        bars[i].setAttribute("x", i + 0.04);
        bars[i].setAttribute("width", 0.92);
        bars[i].setAttribute("y", HEIGHT - height);
        bars[i].setAttribute("height", height);
      });
    }

    /** Show the range and the count of a bin; -1 shows none. */
    function pick(i, x, y) {
      picked = i;
      cursor.setAttribute("class", i < 0 ? "bar-cursor" : "bar-cursor shown");
      if (i < 0) {
        cordwood.showTooltip(null);
        cordwood.replace(readout);
        return;
      }
      cursor.setAttribute("x", i);
      const [start, stop] = rangeOf(i);
      const lines = [
        `${formatNumber(start)} to ${formatNumber(stop)}`,
        `${cordwood.counted(counts[i], "value")} (${cordwood.formatShare(counts[i] / total)})`,
      ];
      if (x !== undefined) cordwood.showTooltip(lines, x, y);
      else cordwood.replace(readout, lines.join(": "));
    }

    draw();
    return box;
  };
})(globalThis.cordwood);
