"use strict";
// The drawing of how an array is cut into parts.
(function (cordwood) {
  const WIDTH = 420;
  const HEIGHT = 220;
  const LEFT = 40;
  const TOP = 22;
  const MOST_LABELS = 64;

  /**
   * Return a drawing of the boxes of an array, and a sentence on it.
   * Of more than two axes the two that are cut the most are drawn. Boxes that fall on each other
   * there are one box with their number.
   */
  cordwood.shardingDrawing = function (shape, parts, count) {
    const { element } = cordwood;
    const axes = drawnAxes(shape, parts);
    const boxes = new Map();
    for (const [number, { start, stop }] of parts.entries()) {
      const sides = axes.map((axis) => [start[axis], stop[axis]]);
      const key = String(sides);
      const box = boxes.get(key) ?? { sides, numbers: [] };
      box.numbers.push(number);
      boxes.set(key, box);
    }
    const sentence = sentenceOf(shape, axes, parts, count, boxes.size);
    return element(
      "figure",
      { class: "chart" },
      drawing(shape, axes, [...boxes.values()], sentence),
      element("figcaption", { class: "muted small" }, sentence),
    );
  };

  /** Return the numbers of the one or two axes to draw, in order. */
  function drawnAxes(shape, parts) {
    if (shape.length < 2) return shape.length ? [0] : [];
    const cuts = shape.map((_, axis) => new Set(parts.map((part) => part.start[axis])).size);
    const order = shape.map((_, axis) => axis);
    order.sort((x, y) => cuts[y] - cuts[x] || Number(shape[y] > 1) - Number(shape[x] > 1) || x - y);
    return order.slice(0, 2).sort((x, y) => x - y);
  }

  /** Return what the drawing shows, in words. */
  function sentenceOf(shape, axes, parts, count, drawn) {
    const texts = [cordwood.counted(count, "part")];
    if (parts.length && axes.length) {
      const sizes = new Set(parts.map((part) => part.stop.map((stop, i) => stop - part.start[i]).join(" × ")));
      if (sizes.size === 1) texts[0] += count === 1 ? ": the whole array" : `, each ${[...sizes][0]}`;
    }
    if (shape.length > 2) {
      texts.push(`drawn are axes ${axes.join(" and ")} of ${shape.length}`);
      if (drawn < parts.length) texts.push("parts that differ along other axes lie on each other");
    }
    if (count > parts.length) texts.push(`the first ${cordwood.formatCount(parts.length)} are drawn`);
    return `${texts.join("; ")}.`;
  }

  /** Return the drawing. */
  function drawing(shape, axes, boxes, label) {
    const { svg } = cordwood;
    const isFlat = axes.length < 2;
    const rows = isFlat ? 1 : shape[axes[0]] || 1;
    const columns = axes.length ? shape[axes.at(-1)] || 1 : 1;
    const ratio = isFlat ? 8 : Math.max(0.5, Math.min(4, columns / rows));
    const height = isFlat ? 48 : Math.min(HEIGHT, WIDTH / ratio);
    const width = isFlat ? WIDTH : Math.max(80, Math.min(WIDTH, height * ratio));
    const labelled = boxes.length <= MOST_LABELS;
    const rects = boxes.map(({ sides, numbers }, i) => {
      const [top, bottom] = isFlat ? [0, 1] : sides[0];
      const [left, right] = axes.length ? sides.at(-1) : [0, 1];
      const x = LEFT + (left / columns) * width;
      const y = TOP + (top / rows) * height;
      const wide = ((right - left) / columns) * width;
      const high = ((bottom - top) / rows) * height;
      const text = numbers.length === 1 ? String(numbers[0]) : `${numbers.length} parts`;
      const fits = labelled && wide > 7 * text.length + 4 && high > 13;
      const range = sides.map(([start, stop]) => `${start}:${stop}`).join(", ");
      return [
        svg(
          "rect",
          { x, y, width: Math.max(1, wide), height: Math.max(1, high), class: `shade-${shadeOf(sides, i)}` },
          svg("title", {}, `[${range}] part ${numbers.slice(0, 8).join(", ")}`),
        ),
        fits &&
          svg("text", { x: x + wide / 2, y: y + high / 2 + 4, "text-anchor": "middle" }, text),
      ];
    });
    const full = LEFT + width + 4;
    return svg(
      "svg",
      {
        class: "boxes",
        viewBox: `0 0 ${full} ${TOP + height + 4}`,
        width: full,
        role: "img",
        "aria-label": label,
      },
      rects,
      axes.length > 0 &&
        svg(
          "text",
          { class: "axis-name", x: LEFT + width / 2, y: 14, "text-anchor": "middle" },
          `axis ${axes.at(-1)}: ${columns}`,
        ),
      !isFlat &&
        svg(
          "text",
          {
            class: "axis-name",
            transform: `translate(28 ${TOP + height / 2}) rotate(-90)`,
            "text-anchor": "middle",
          },
          `axis ${axes[0]}: ${rows}`,
        ),
    );
  }

  /** Return 0 or 1, so that neighbours differ like the fields of a chessboard. */
  function shadeOf(sides, i) {
    const steps = sides.map(([start, stop]) => Math.round(start / Math.max(1, stop - start)));
    return (steps.length ? steps.reduce((x, y) => x + y, 0) : i) % 2;
  }
})(globalThis.cordwood);
