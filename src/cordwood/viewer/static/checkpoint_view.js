// The view of a checkpoint: one line, the treemap, the table of leaves, metadata and files.
const {
  colourings, copyButton, counted, element, fetchResource, formatBytes, formatCount, formatShape, go,
  hasResource, home, inTasks, leafPart, link, naturalKey, nextTask, printable, replace, resourceName, rowsOf,
  setQuery, treeOf,
} = cordwood;
const states = new Map(); // of the tables: folds and scroll last until the page is closed

/** Draw the view of a checkpoint. */
cordwood.views.checkpoint = async function (root, route) {
  const [source] = route.parts;
  const waiting = element("p.muted", "Reading the index…");
  root.append(waiting);
  const checkpoint = await fetchResource(resourceName("checkpoint", source), { signal: route.signal });
  const name = cordwood.sourceName(source);
  cordwood.setPlace([source]);
  const map = element("section.panel.treemap-panel", { "aria-label": "Treemap" });
  const leaves = element("section.panel", { "aria-label": "Leaves" });
  replace(root, summary(checkpoint, source, name), map, leaves, details(checkpoint));
  await nextTask();

  const rows = rowsOf(checkpoint.leaves);
  await nextTask();
  const href = (row) => link("leaf", [source, leafPart(row.path, row.number)]);
  const tree = { keys: (row) => row.keys, href };
  const table = cordwood.table({
    columns: columnsOf(rows, checkpoint.shardings),
    rows,
    tree,
    initial: {
      ...states.get(source),
      sort: route.query.get("sort"),
      descending: route.query.get("descending") === "1",
      search: route.query.get("search") ?? "",
    },
    onChange: ({ sort, descending, search }) => {
      setQuery({ sort, descending: descending ? "1" : null, search });
    },
  });
  states.set(source, table.state);
  leaves.append(element("h2.off-screen", "Leaves"), table.element);
  await table.ready;
  let treemap = null;
  cordwood.setKeys({
    "/": table.focusSearch,
    j: table.focus,
    k: table.focus,
    ArrowDown: table.focus,
    up: () => treemap?.zoomOut() || cordwood.start.kind === "checkpoint" || go(home()),
  });
  if (route.query.get("focus") === "search") {
    setQuery({ focus: null });
    table.focusSearch();
  }
  await nextTask();
  route.signal.throwIfAborted();
  treemap = await drawTreemap(map, rows, checkpoint, href, route);
};

/** Draw the treemap; a checkpoint without arrays has none. */
async function drawTreemap(panel, rows, checkpoint, href, route) {
  const tree = treeOf(
    rows,
    (row) => row.keys,
    (row) => row.size_bytes,
  );
  const root = await inTasks(tree, route.signal);
  if (!root.size) {
    panel.remove();
    return null;
  }
  const treemap = cordwood.treemap({
    root,
    colourings: colourings(rows, checkpoint.shardings),
    href,
    initial: { zoom: route.query.get("zoom"), colour: route.query.get("colour") },
    onChange: ({ zoom, colour }) => setQuery({ zoom, colour }),
  });
  panel.append(treemap.element);
  return treemap;
}

/** Return the line that says what the checkpoint is. */
function summary(checkpoint, source, name) {
  const dtypes = Object.entries(checkpoint.dtypes).filter(([, bytes]) => bytes > 0);
  dtypes.sort((first, second) => second[1] - first[1]);
  const names = dtypes.slice(0, 4).map(([text]) => printable(text, 40));
  if (dtypes.length > 4) names.push(`${dtypes.length - 4} more`);
  const digests = {
    all: "every byte has a digest",
    some: "some files have digests",
    none: "without digests",
  }[checkpoint.digests];
  const stored = checkpoint.stored_bytes;
  const differs = Math.abs(stored - checkpoint.size_bytes) > 0.02 * checkpoint.size_bytes + 65536;
  return element(
    "div.heading",
    element("h1", { title: printable(checkpoint.path, 1000) }, printable(name, 120)),
    element(
      "div.summary",
      element("span", { title: printable(checkpoint.description, 400) }, printable(checkpoint.format, 60)),
      element("span", counted(checkpoint.leaf_count, "leaf", "leaves")),
      element("span", formatBytes(checkpoint.size_bytes)),
      differs && element("span", `${formatBytes(stored)} stored`),
      names.length > 0 && element("span", names.join(", ")),
      element("span", digests),
      verification(checkpoint, source),
    ),
  );
}

/** Return the button that checks every digest, and then the result. */
function verification(checkpoint, source) {
  const name = resourceName("verify", source);
  if (checkpoint.digests === "none" || !hasResource(name)) return null;
  const result = element("div.verification", { role: "status" });
  const task = cordwood.task({
    title: "Verify",
    again: "Verify again",
    run: async (onProgress, signal) => {
      replace(result);
      const verified = await fetchResource(name, { onProgress, signal });
      const checked = formatBytes(verified.checked_bytes);
      const text = verified.ok
        ? `✓ ${checked} match their digests.`
        : `✗ ${counted(verified.problems.length, "problem")}`;
      const without = verified.without_digests;
      replace(
        result,
        element("strong", { class: verified.ok ? "added" : "damaged" }, text),
        without.length > 0 && ` Without digests: ${printable(without.slice(0, 5).join(", "), 300)}`,
        !verified.ok && element("pre", printable(verified.problems.slice(0, 100).join("  "), 8000)),
      );
    },
  });
  return [task, result];
}

/** Return the columns of the table of leaves. */
function columnsOf(rows, shardings) {
  const columns = [
    { name: "path", label: "Key path", value: (row) => (row.naturalKey ??= naturalKey(row.path)) },
    {
      name: "dtype",
      label: "Type",
      width: 8,
      narrow: 5.5,
      value: (row) => row.dtype,
      cell: (row) => printable(row.dtype, 40),
    },
    {
      name: "shape",
      label: "Shape",
      title: "Sorted by the number of elements",
      width: 11,
      grow: rows.some((row) => row.value !== null),
      wide: true,
      value: (row) => row.shape.reduce((x, y) => x * y, 1),
      cell: (row) => {
        if (row.value === null) return formatShape(row.shape);
        return element("code.muted", printable(row.value, 60));
      },
    },
    {
      name: "sharding",
      label: "Sharding",
      width: 14,
      wide: true,
      value: (row) => shardings[row.sharding] ?? null,
      cell: (row) => {
        const text = shardings[row.sharding] ?? "";
        return element("span.muted", { title: printable(text, 1000) }, printable(text, 60));
      },
    },
    cordwood.numberColumn("size_bytes", "Size", formatBytes, {
      width: 7.5,
      narrow: 6,
      sum: true,
      cell: (row) => (row.value === null ? formatBytes(row.size_bytes) : ""),
    }),
  ];
  return shardings.length ? columns : columns.filter((column) => column.name !== "sharding");
}

/** Return the metadata and the files, both foldable. */
function details(checkpoint) {
  const entries = Object.entries(checkpoint.metadata);
  const metadata = element(
    "details.panel",
    { open: entries.length > 0 && entries.length <= 6 },
    element("summary", `Metadata (${counted(entries.length, "entry", "entries")})`),
    element(
      "dl.metadata",
      entries.map(([key, value]) => [
        element("dt", printable(key, 120)),
        element("dd", metadataValue(value)),
      ]),
    ),
  );
  const count = checkpoint.file_count;
  const files = element("details.panel", element("summary", `Files (${formatCount(count)})`));
  files.addEventListener("toggle", () => files.children.length < 2 && files.append(fileTable(checkpoint)));
  return element("div.columns", entries.length > 0 && metadata, element("div", files));
}

/** Return a value of the metadata: JSON is indented. */
function metadataValue(value) {
  let text = typeof value === "string" ? value : JSON.stringify(value);
  try {
    const parsed = JSON.parse(text);
    if (parsed !== null && typeof parsed === "object") text = JSON.stringify(parsed, null, 2);
  } catch {
    // It is plain text.
  }
  const lines = text.split("\n", 400).map((line) => printable(line, 4000));
  const shown = lines.join("\n").slice(0, 40000);
  return [
    element(lines.length > 1 || shown.length > 200 ? "pre" : "code", {}, shown),
    copyButton(String(value), "Copy the value"),
  ];
}

/** Return the table of files. */
function fileTable(checkpoint) {
  return cordwood.table({
    label: "Files",
    nouns: ["file", "files"],
    rows: checkpoint.files.map((file) => ({ path: file.name, size: file.size_bytes })),
    columns: [cordwood.nameColumn("path", "Name"), cordwood.numberColumn("size", "Size", formatBytes)],
  }).element;
}
