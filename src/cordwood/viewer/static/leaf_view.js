"use strict";
// The view of one leaf: its type, its values, and where its bytes are.
(function (cordwood) {
  /** Draw the view of a leaf. */
  cordwood.views.leaf = async function (root, route) {
    const { element, fetchResource, resourceName, link, leafPart } = cordwood;
    const [source, part] = route.parts;
    const signal = route.signal;
    root.append(element("p", { class: "muted" }, "Reading the index…"));
    const checkpoint = await fetchResource(resourceName("checkpoint", source), { signal });
    const paths = checkpoint.leaves.path;
    const number = cordwood.leafNumber(paths, part ?? "");
    if (number < 0) {
      root.replaceChildren();
      throw new cordwood.ResourceError("NoView", `There is no leaf ${part} in this checkpoint.`);
    }
    const addressOf = (i) => link("leaf", [source, leafPart(paths[i], i)]);
    const up = link("checkpoint", [source]);
    setBreadcrumbs(source, up, paths[number]);
    const step = (by) => {
      const next = number + by;
      if (next >= 0 && next < paths.length) cordwood.go(addressOf(next));
    };
    cordwood.setKeys({
      j: () => step(1),
      k: () => step(-1),
      ArrowRight: () => step(1),
      ArrowLeft: () => step(-1),
      up: () => cordwood.go(up),
      c: () => cordwood.copy(paths[number]),
      "/": () => cordwood.go(`${up}?focus=search`),
    });
    const head = heading(paths[number], number, paths.length, step);
    cordwood.replace(root, head);
    const leaf = await fetchResource(resourceName("leaf", source, number), { signal });
    cordwood.append(root, [
      facts(leaf),
      leaf.value === null && isNumeric(leaf) && leaf.size_bytes > 0 && statistics(source, leaf),
      leaf.value !== null && value(leaf),
      leaf.pieces.length > 0 && places(leaf),
    ]);
  };

  /** Show where the leaf stands. */
  function setBreadcrumbs(source, up, path) {
    const items = [{ label: cordwood.sourceName(source), href: up }, { label: path || "(root)" }];
    if (cordwood.start.kind !== "checkpoint") {
      items.unshift({ label: cordwood.start.title, href: cordwood.home() });
    }
    cordwood.setBreadcrumbs(items);
  }

  /** Return the key path, and buttons to the leaves before and after. */
  function heading(path, number, count, step) {
    const { element } = cordwood;
    const button = (icon, label, by, disabled) =>
      element(
        "button",
        { type: "button", class: "icon-button", "aria-label": label, title: label, disabled, onclick: () => step(by) },
        cordwood.icon(icon),
      );
    return element(
      "div",
      { class: "leaf-head" },
      element("h1", {}, cordwood.keyPath(path, { limit: 300 })),
      element(
        "span",
        { class: "button-group" },
        button("previous", "Previous leaf ( k )", -1, number === 0),
        element(
          "span",
          { class: "leaf-number muted" },
          `${cordwood.formatCount(number + 1)} of ${cordwood.formatCount(count)}`,
        ),
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
    const { printable } = cordwood;
    const kinds = { jax: "JAX array", numpy: "NumPy array", numpy_scalar: "NumPy scalar", prng_key: "PRNG keys" };
    const isArray = leaf.kind in kinds;
    const elements = leaf.shape.reduce((x, y) => x * y, 1);
    return cordwood.element(
      "section",
      { class: "panel", "aria-label": "Type" },
      cordwood.facts([
        ["Type", printable(leaf.dtype, 60)],
        ["Shape", isArray ? cordwood.formatShape(leaf.shape) : null],
        ["Elements", isArray ? cordwood.formatCount(elements) : null],
        ["Size", isArray ? cordwood.formatBytes(leaf.size_bytes) : null],
        ["Kind", kinds[leaf.kind] ?? `Python ${printable(leaf.kind, 40)}`],
        ["Weak type", leaf.weak_type ? "yes" : null],
        ["Sharding", leaf.sharding === null ? null : printable(leaf.sharding, 400)],
      ]),
    );
  }

  /** Return the panel of statistics: of a sample at once, of all elements on demand. */
  function statistics(source, leaf) {
    const { element, resourceName } = cordwood;
    const nameOf = (read) => resourceName("statistics", source, leaf.number, read);
    const content = element("div", { class: "statistics" });
    const note = element("span", { class: "muted", role: "status" });
    const tasks = element("span", { class: "tasks" });
    const show = async (read, onProgress, signal) => {
      const values = await cordwood.fetchResource(nameOf(read), { onProgress, signal });
      drawStatistics(content, values);
      cordwood.replace(note, readNote(values));
      if (values.complete) fullRead.remove();
      else if (cordwood.hasResource(nameOf("all"))) tasks.append(fullRead);
    };
    const task = (title, read, start) =>
      cordwood.task({ title, start, run: (onProgress, signal) => show(read, onProgress, signal) });
    const fullRead = task(`Read all ${cordwood.formatBytes(leaf.size_bytes)}`, "all", false);
    const first = cordwood.inExport && cordwood.hasResource(nameOf("all")) ? "all" : "sample";
    if (cordwood.hasResource(nameOf(first))) tasks.append(task("Read a sample", first, true));
    else content.append(element("p", { class: "muted" }, cordwood.leftOut().message));
    return element(
      "section",
      { class: "panel", "aria-label": "Values" },
      element("div", { class: "panel-head" }, element("h2", {}, "Values"), note, tasks),
      content,
    );
  }

  /** Return what was read for statistics. */
  function readNote(values) {
    const elements = values.size;
    if (values.complete) return `all ${cordwood.counted(elements, "element")}`;
    const share = values.read_size === undefined ? "" : ` (${cordwood.formatShare(values.read_size / elements)})`;
    return `a sample of ${cordwood.formatBytes(values.read_bytes)}${share}`;
  }

  /** Draw statistics. */
  function drawStatistics(content, values) {
    const { element, formatNumber, formatCount } = cordwood;
    const number = (value) => (value === null ? null : formatNumber(value));
    const strange = (count) =>
      element("span", { class: count ? "damaged" : "" }, `${count ? "⚠ " : ""}${formatCount(count)}`);
    const zeros = values.read_size ? ` (${cordwood.formatShare(values.zero / values.read_size)})` : "";
    const { histogram, heat, first } = values;
    cordwood.replace(
      content,
      cordwood.facts([
        ["Min", number(values.min)],
        ["Max", number(values.max)],
        ["Mean", number(values.mean)],
        ["Std", number(values.std)],
        ["L2 norm", number(values.l2)],
        ["Zeros", `${formatCount(values.zero)}${values.zero ? zeros : ""}`],
        ["NaN", strange(values.nan)],
        ["Inf", strange(values.inf)],
      ]),
      element(
        "div",
        { class: "columns charts" },
        histogram && cordwood.charts.histogram({ ...histogram, label: "Histogram", size: values.size }),
        heat && heat.values.length > 1 && heatMap(heat),
      ),
      first.length > 0 && [
        element("h3", {}, values.size > first.length ? `First ${first.length} elements` : "Elements"),
        element("ol", { class: "values" }, first.map((text) => element("li", {}, cordwood.printable(text, 60)))),
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
      marks: heat.nan.map((count) => (count ? `${cordwood.formatCount(count)} NaN` : "")),
      emptyText: "not read",
      label: `Mean |x| of tiles of ${high} × ${wide}`,
      place: (row, column) => `rows ${range(row, high)}, columns ${range(column, wide)}`,
    });
  }

  /** Return the panel of a Python value. */
  function value(leaf) {
    const text = leaf.value;
    return cordwood.element(
      "section",
      { class: "panel", "aria-label": "Value" },
      cordwood.element(
        "div",
        { class: "panel-head" },
        cordwood.element("h2", {}, "Value"),
        cordwood.copyButton(text, "Copy the value"),
      ),
      cordwood.element("pre", {}, cordwood.printable(text, 20000)),
    );
  }

  /** Return the drawing of the parts of an array; null if it is whole. */
  function sharding(leaf) {
    if (leaf.value !== null || leaf.parts.length < 2) return null;
    const shape = leaf.stored_shape ?? leaf.shape;
    return cordwood.shardingDrawing(shape, leaf.parts, leaf.part_count ?? leaf.parts.length);
  }

  /** Return the panel of where the bytes are: a drawing of the parts, and a table. */
  function places(leaf) {
    const { element, printable } = cordwood;
    const box = (piece) =>
      piece.start === null ? "" : `[${piece.start.map((start, i) => `${start}:${piece.stop[i]}`).join(", ")}]`;
    const rows = leaf.pieces.map((piece, number) => ({ ...piece, number, path: piece.file, box: box(piece) }));
    const longest = rows.reduce((most, row) => Math.max(most, row.box.length), 6);
    const columns = [
      {
        name: "file",
        label: "File",
        value: (row) => cordwood.naturalKey(row.file),
        cell: (row) => element("span", { class: "key", title: printable(row.file) }, printable(row.file)),
      },
      { name: "box", label: "Part", width: Math.min(24, 2 + 0.6 * longest), cell: (row) => element("code", {}, row.box) },
      {
        name: "offset",
        label: "Offset",
        align: "end",
        width: 8,
        value: (row) => row.offset,
        cell: (row) => cordwood.formatCount(row.offset),
      },
      {
        name: "length",
        label: "Length",
        align: "end",
        width: 8,
        value: (row) => row.length,
        cell: (row) => cordwood.formatCount(row.length),
      },
      {
        name: "digest",
        label: "Digest",
        width: 25,
        grow: true,
        cell: (row) =>
          row.digest === null
            ? element("span", { class: "muted" }, "none")
            : element("code", { class: "small", title: row.digest }, printable(row.digest, 120)),
      },
    ];
    const count = leaf.piece_count ?? leaf.pieces.length;
    const table = cordwood.table({ label: "Pieces", nouns: ["piece", "pieces"], rows, columns });
    return cordwood.panel(
      `Where its bytes are: ${cordwood.counted(count, "piece")}`,
      element("div", { class: "places" }, sharding(leaf), table.element),
      count > rows.length &&
        element("p", { class: "muted" }, `The first ${cordwood.formatCount(rows.length)} are listed.`),
    );
  }
})(globalThis.cordwood);
