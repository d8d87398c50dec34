// The view of one leaf: its type, its values, how it is cut, and where its bytes are.
const {
  ResourceError, append, copy, copyButton, counted, element, fetchResource, formatBytes, formatCount,
  formatNumber, formatShape, formatShare, go, hasResource, inExport, keyPath, leafNumber, leafPart, leftOut,
  link, panel, printable, replace, resourceName, svg,
} = cordwood;

/** Draw the view of a leaf. */
cordwood.views.leaf = async function (root, route) {
  const [source, part] = route.parts;
  const signal = route.signal;
  root.append(element("p.muted", "Reading the index…"));
  const checkpoint = await fetchResource(resourceName("checkpoint", source), { signal });
  const paths = checkpoint.leaves.path;
  const number = leafNumber(paths, part ?? "");
  if (number < 0) {
    root.replaceChildren();
    throw new ResourceError("NoView", `There is no leaf ${part} in this checkpoint.`);
  }
  const addressOf = (i) => link("leaf", [source, leafPart(paths[i], i)]);
  const up = link("checkpoint", [source]);
  cordwood.setPlace([source], paths[number]);
  const step = (by) => {
    const next = number + by;
    if (next >= 0 && next < paths.length) go(addressOf(next));
  };
  cordwood.setKeys({
    j: () => step(1),
    k: () => step(-1),
    ArrowRight: () => step(1),
    ArrowLeft: () => step(-1),
    up: () => go(up),
    c: () => copy(paths[number]),
    "/": () => go(`${up}?focus=search`),
  });
  const head = heading(paths[number], number, paths.length, step);
  replace(root, head);
  const leaf = await fetchResource(resourceName("leaf", source, number), { signal });
  append(root, [
    facts(leaf),
    leaf.value === null && isNumeric(leaf) && leaf.size_bytes > 0 && statistics(source, leaf),
    leaf.value !== null && value(leaf),
    leaf.pieces.length > 0 && places(leaf),
  ]);
};

/** Return the key path, and buttons to the leaves before and after. */
function heading(path, number, count, step) {
  const button = (icon, label, by, disabled) =>
    cordwood.iconButton(icon, label, () => step(by), { disabled });
  const place = `${formatCount(number + 1)} of ${formatCount(count)}`;
  return element(
    "div.leaf-head",
    element("h1", keyPath(path, 300)),
    element(
      "span.button-group",
      button("previous", "Previous leaf ( k )", -1, number === 0),
      element("span.leaf-number.muted", place),
      button("next", "Next leaf ( j )", 1, number === count - 1),
    ),
  );
}

/** Return true if a leaf has elements that are numbers. */
function isNumeric(leaf) {
  return leaf.kind !== "prng_key" && !/^(datetime|timedelta)/.test(leaf.dtype);
}

/** Return what is known without its elements. */
function facts(leaf) {
  const kinds = {
    jax: "JAX array",
    numpy: "NumPy array",
    numpy_scalar: "NumPy scalar",
    prng_key: "PRNG keys",
  };
  const isArray = leaf.kind in kinds;
  const elements = leaf.shape.reduce((x, y) => x * y, 1);
  return element(
    "section.panel",
    { "aria-label": "Type" },
    cordwood.facts([
      ["Type", printable(leaf.dtype, 60)],
      ["Shape", isArray ? formatShape(leaf.shape) : null],
      ["Elements", isArray ? formatCount(elements) : null],
      ["Size", isArray ? formatBytes(leaf.size_bytes) : null],
      ["Kind", kinds[leaf.kind] ?? `Python ${printable(leaf.kind, 40)}`],
      ["Weak type", leaf.weak_type ? "yes" : null],
      ["Sharding", leaf.sharding === null ? null : printable(leaf.sharding, 400)],
    ]),
  );
}

/** Return the panel of statistics: of a sample at once, of all elements on demand. */
function statistics(source, leaf) {
  const nameOf = (read) => resourceName("statistics", source, leaf.number, read);
  const content = element("div.statistics");
  const note = element("span.muted", { role: "status" });
  const tasks = element("span.tasks");
  const show = async (read, onProgress, signal) => {
    const values = await fetchResource(nameOf(read), { onProgress, signal });
    drawStatistics(content, values);
    replace(note, readNote(values));
    if (values.complete) fullRead.remove();
    else if (hasResource(nameOf("all"))) tasks.append(fullRead);
  };
  const task = (title, read, start) =>
    cordwood.task({ title, start, run: (onProgress, signal) => show(read, onProgress, signal) });
  const fullRead = task(`Read all ${formatBytes(leaf.size_bytes)}`, "all", false);
  const first = inExport && hasResource(nameOf("all")) ? "all" : "sample";
  if (hasResource(nameOf(first))) tasks.append(task("Read a sample", first, true));
  else content.append(element("p.muted", leftOut().message));
  return element(
    "section.panel",
    { "aria-label": "Values" },
    element("div.panel-head", element("h2", "Values"), note, tasks),
    content,
  );
}

/** Return what was read for statistics. */
function readNote(values) {
  const elements = values.size;
  if (values.complete) return `all ${counted(elements, "element")}`;
  const share = values.read_size === undefined ? "" : ` (${formatShare(values.read_size / elements)})`;
  return `a sample of ${formatBytes(values.read_bytes)}${share}`;
}

/** Draw statistics. */
function drawStatistics(content, values) {
  const strange = (count) =>
    element("span", { class: count ? "damaged" : "" }, `${count ? "⚠ " : ""}${formatCount(count)}`);
  const zeros = values.read_size ? ` (${formatShare(values.zero / values.read_size)})` : "";
  const { histogram, heat, first } = values;
  replace(
    content,
    cordwood.facts([
      ["Min", formatNumber(values.min)],
      ["Max", formatNumber(values.max)],
      ["Mean", formatNumber(values.mean)],
      ["Std", formatNumber(values.std)],
      ["L2 norm", formatNumber(values.l2)],
      ["Zeros", `${formatCount(values.zero)}${values.zero ? zeros : ""}`],
      ["NaN", strange(values.nan)],
      ["Inf", strange(values.inf)],
    ]),
    element(
      "div.columns.charts",
      histogram && cordwood.charts.histogram({ ...histogram, label: "Histogram", size: values.size }),
      heat && heat.values.length > 1 && heatMap(heat),
    ),
    first.length > 0 && [
      element("h3", values.size > first.length ? `First ${first.length} elements` : "Elements"),
      element(
        "ol.values",
        first.map((text) => element("li", printable(text, 60))),
      ),
    ],
  );
}

/** Return the heat map of the mean absolute value of each tile. */
function heatMap(heat) {
  const [high, wide] = heat.tile;
  const range = (i, size) => (size === 1 ? String(i) : `${i * size} to ${(i + 1) * size - 1}`);
  return cordwood.charts.heatMap({
    rows: heat.rows,
    columns: heat.columns,
    values: heat.values.map((value, i) => (heat.nan[i] ? NaN : value)),
    marks: heat.nan.map((count) => (count ? `${formatCount(count)} NaN` : "")),
    emptyText: "not read",
    label: `Mean |x| of tiles of ${high} × ${wide}`,
    place: (row, column) => `rows ${range(row, high)}, columns ${range(column, wide)}`,
  });
}

/** Return the panel of a Python value. */
function value(leaf) {
  const text = leaf.value;
  return element(
    "section.panel",
    { "aria-label": "Value" },
    element("div.panel-head", element("h2", "Value"), copyButton(text, "Copy the value")),
    element("pre", printable(text, 20000)),
  );
}

/** Return the range of a box along each axis: `[0:4, 8:16]`. */
function rangesOf(sides) {
  return `[${sides.map(([start, stop]) => `${start}:${stop}`).join(", ")}]`;
}

/** Return the panel of where the bytes are: a drawing of the parts, and a table. */
function places(leaf) {
  const rows = leaf.pieces.map((piece, number) => {
    const sides = piece.start?.map((start, i) => [start, piece.stop[i]]);
    return { ...piece, number, path: piece.file, box: sides ? rangesOf(sides) : "" };
  });
  const longest = rows.reduce((most, row) => Math.max(most, row.box.length), 6);
  const columns = [
    cordwood.nameColumn("file", "File"),
    {
      name: "box",
      label: "Part",
      width: Math.min(24, 2 + 0.6 * longest),
      cell: (row) => element("code", row.box),
    },
    cordwood.numberColumn("offset", "Offset", formatCount, { width: 8 }),
    cordwood.numberColumn("length", "Length", formatCount, { width: 8 }),
    {
      name: "digest",
      label: "Digest",
      width: 25,
      grow: true,
      cell: (row) =>
        row.digest === null
          ? element("span.muted", "none")
          : element("code.small", { title: row.digest }, printable(row.digest, 120)),
    },
  ];
  const count = leaf.piece_count;
  const table = cordwood.table({ label: "Pieces", nouns: ["piece", "pieces"], rows, columns });
  return panel(
    `Where its bytes are: ${counted(count, "piece")}`,
    element("div.places", sharding(leaf), table.element),
    count > rows.length && element("p.muted", `The first ${formatCount(rows.length)} are listed.`),
  );
}

const WIDTH = 420;
const HEIGHT = 220;
const LEFT = 40;
const TOP = 22;
const MOST_LABELS = 64;

/**
 * Return a drawing of the boxes of an array, and a sentence on it; null if the array is whole.
 * Of more than two axes the two that are cut the most are drawn. Boxes that fall on each other
 * there are one box with their number.
 */
function sharding({ value, stored_shape: shape, parts, part_count: count }) {
  if (value !== null || parts.length < 2) return null;
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
    "figure.chart",
    drawing(shape, axes, [...boxes.values()], sentence),
    element("figcaption.muted.small", sentence),
  );
}

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
  const texts = [counted(count, "part")];
  if (parts.length && axes.length) {
    const sizes = new Set(parts.map((part) => part.stop.map((stop, i) => stop - part.start[i]).join(" × ")));
    if (sizes.size === 1) texts[0] += count === 1 ? ": the whole array" : `, each ${[...sizes][0]}`;
  }
  if (shape.length > 2) {
    texts.push(`drawn are axes ${axes.join(" and ")} of ${shape.length}`);
    if (drawn < parts.length) texts.push("parts that differ along other axes lie on each other");
  }
  if (count > parts.length) texts.push(`the first ${formatCount(parts.length)} are drawn`);
  return `${texts.join("; ")}.`;
}

/** Return the drawing. */
function drawing(shape, axes, boxes, label) {
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
    return [
      svg(
        "rect",
        { x, y, width: Math.max(1, wide), height: Math.max(1, high), class: `shade-${shadeOf(sides, i)}` },
        svg("title", `${rangesOf(sides)} part ${numbers.slice(0, 8).join(", ")}`),
      ),
      fits && svg("text", { x: x + wide / 2, y: y + high / 2 + 4, "text-anchor": "middle" }, text),
    ];
  });
  const full = LEFT + width + 4;
  return svg(
    "svg.boxes",
    { viewBox: `0 0 ${full} ${TOP + height + 4}`, width: full, role: "img", "aria-label": label },
    rects,
    axes.length > 0 &&
      svg(
        "text.axis-name",
        { x: LEFT + width / 2, y: 14, "text-anchor": "middle" },
        `axis ${axes.at(-1)}: ${columns}`,
      ),
    !isFlat &&
      svg(
        "text.axis-name",
        { transform: `translate(28 ${TOP + height / 2}) rotate(-90)`, "text-anchor": "middle" },
        `axis ${axes[0]}: ${rows}`,
      ),
  );
}

/** Return 0 or 1, so that neighbours differ like the fields of a chessboard. */
function shadeOf(sides, i) {
  const steps = sides.map(([start, stop]) => Math.round(start / Math.max(1, stop - start)));
  return (steps.length ? steps.reduce((x, y) => x + y, 0) : i) % 2;
}
