// The rows of a table: as a tree or in an order, which of them are shown, and their cells.
// The generators run in small tasks: `cordwood.inTasks`.
const { copyButton, element, formatCount, naturalKey, printable, toNumber } = cordwood;
const MAX_DEPTH = 40; // keys below are shown as one key
const ROWS_AT_ONCE = 512;

/**
 * Return a table given column by column as rows: `{path: [..], size: [..]}` becomes
 * `[{number, path, size}, ..]`.
 */
cordwood.rowsOf = function (columns) {
  const names = Object.keys(columns);
  const count = columns[names[0]]?.length ?? 0;
  const rows = new Array(count);
  for (let number = 0; number < count; number++) {
    const row = { number };
    for (const name of names) row[name] = columns[name][number];
    rows[number] = row;
  }
  return rows;
};

/**
 * Build the tree of rows by their keys, and return its root.
 * A node is `{key, id, parent, children, row, size, count}`; `row` is null for a container, and
 * `children` is null for a leaf. `size` and `count` of a container are sums over its leaves.
 */
cordwood.treeOf = function* (rows, keysOf, sizeOf) {
  const root = container("", "", null);
  for (let i = 0; i < rows.length; i++) {
    if (i % ROWS_AT_ONCE === 0) yield;
    const row = rows[i];
    let keys = keysOf(row);
    if (keys.length > MAX_DEPTH) {
      keys = [...keys.slice(0, MAX_DEPTH - 1), keys.slice(MAX_DEPTH - 1).join("/")];
    }
    const size = Number(sizeOf(row)) || 0;
    let node = root;
    for (let depth = 0; depth < keys.length - 1; depth++) {
      let child = node.containers.get(keys[depth]);
      if (!child) {
        const id = node === root ? keys[depth] : `${node.id}/${keys[depth]}`;
        child = container(keys[depth], id, node);
        node.containers.set(keys[depth], child);
        node.children.push(child);
      }
      node.size += size;
      node.count += 1;
      node = child;
    }
    node.size += size;
    node.count += 1;
    const key = keys.length ? keys[keys.length - 1] : "";
    node.children.push({ key, id: null, parent: node, children: null, row, size, count: 1 });
  }
  return root;
};

/** Return an empty container. */
function container(key, id, parent) {
  return { key, id, parent, children: [], containers: new Map(), row: null, size: 0, count: 0 };
}

/** Return the node that a container with a single child stands for, and its label. */
cordwood.mergedNode = function (node) {
  let label = node.key;
  while (node.children?.length === 1) {
    node = node.children[0];
    label += `/${node.key}`;
  }
  return [node, label];
};

/** Return the leaves below a node, in order. */
cordwood.leavesOf = function* (node) {
  if (node.row) yield node.row;
  else for (const child of node.children) yield* cordwood.leavesOf(child);
};

/** Return the container of an id, or the root if there is none. */
cordwood.containerOf = function (root, id) {
  const queue = [root];
  while (queue.length) {
    const node = queue.pop();
    if (node.id === id) return node;
    for (const child of node.containers.values()) {
      if (id === child.id || id.startsWith(`${child.id}/`)) queue.push(child);
    }
  }
  return root;
};

/**
 * Return rows in the order of a value, a merge sort in parts.
 * Values are numbers or texts; NaN, null and undefined stand last in both directions.
 */
cordwood.sortedRows = function* (rows, valueOf, descending) {
  let runs = [];
  for (let i = 0; i < rows.length; i += ROWS_AT_ONCE) {
    const run = rows.slice(i, i + ROWS_AT_ONCE).map((row) => ({ row, value: valueOf(row) }));
    runs.push(run.sort((x, y) => compare(x.value, y.value, descending)));
    yield;
  }
  while (runs.length > 1) {
    const merged = [];
    for (let i = 0; i < runs.length; i += 2) {
      merged.push(i + 1 < runs.length ? yield* merge(runs[i], runs[i + 1], descending) : runs[i]);
    }
    runs = merged;
  }
  return (runs[0] ?? []).map((item) => item.row);
};

/** Return two sorted runs as one; equal values keep their order. */
function* merge(first, second, descending) {
  const merged = new Array(first.length + second.length);
  let i = 0;
  let j = 0;
  for (let k = 0; k < merged.length; k++) {
    if (k % ROWS_AT_ONCE === 0) yield;
    const takeFirst =
      j === second.length || (i < first.length && compare(first[i].value, second[j].value, descending) <= 0);
    merged[k] = takeFirst ? first[i++] : second[j++];
  }
  return merged;
}

/** Compare two values for a sort. */
function compare(x, y, descending) {
  const xMissing = x === null || x === undefined || Number.isNaN(x);
  const yMissing = y === null || y === undefined || Number.isNaN(y);
  if (xMissing || yMissing) return Number(xMissing) - Number(yMissing);
  const order = x < y ? -1 : x > y ? 1 : 0;
  return descending ? -order : order;
}

const OPEN_AT_FIRST = 60; // rows: containers are opened until that many are shown

/**
 * Compute what a table shows, and how many rows match its search.
 * An entry is `{node, row, label, depth, open}`; `row` is null for a container.
 * Also returned are the tree of all rows (`root`) and the open containers, if they were chosen
 * here: `open` of the tree, `searchOpen` of the tree of the rows that match.
 */
cordwood.tableEntries = function* ({ rows, columns, tree, state, root, searchOpen }) {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = words.length ? yield* matching(rows, words) : rows;
  const matches = shown.length;
  const column = columns.find((each) => each.name === state.sort && each.value);
  if (column) shown = yield* cordwood.sortedRows(shown, column.value, state.descending);
  if (column || !tree) {
    const entries = shown.map((row) => ({ row, node: null, label: row.path, depth: 0 }));
    return { entries, matches, root, searchOpen };
  }
  let top = root;
  if (!top || words.length) {
    top = yield* cordwood.treeOf(shown, tree.keys, tree.size ?? ((row) => row.size_bytes));
  }
  let open = words.length ? searchOpen : state.open;
  open ??= cordwood.containersToOpen(top, words.length ? Infinity : OPEN_AT_FIRST);
  const entries = [];
  yield* list(top, 0, open, entries);
  return words.length
    ? { entries, matches, root, searchOpen: open }
    : { entries, matches, root: top, searchOpen, open };
};

/** Return the rows whose path has all words. */
function* matching(rows, words) {
  const matches = [];
  for (let i = 0; i < rows.length; i++) {
    if (i % 1024 === 0) yield;
    const text = (rows[i].searched ??= String(rows[i].path ?? "").toLowerCase());
    if (words.every((word) => text.includes(word))) matches.push(rows[i]);
  }
  return matches;
}

/** List the nodes that are shown; a container with a single child is one row with it. */
function* list(node, depth, open, entries) {
  for (const each of node.children) {
    if (entries.length % 1024 === 0) yield;
    const [child, label] = cordwood.mergedNode(each);
    const opened = child.children !== null && open.has(child.id);
    entries.push({ node: child, row: child.row, label, depth, open: opened });
    if (opened) yield* list(child, depth + 1, open, entries);
  }
}

/**
 * Return the ids of containers to open: level by level, as long as no more rows are shown than
 * `most`. A container that alone has more stays folded.
 */
cordwood.containersToOpen = function (root, most) {
  const open = new Set();
  let level = [...root.containers.values()];
  let rows = root.children.length;
  while (level.length) {
    const opened = level.filter((node) => node.children.length <= most);
    for (const { children } of opened) rows += children.length === 1 ? 0 : children.length;
    if (rows > most) break;
    for (const node of opened) open.add(node.id);
    level = opened.flatMap((node) => [...node.containers.values()]);
  }
  return open;
};

/** Return the widths of columns as a grid template, and their sum in rem. */
cordwood.columnWidths = function (columns, isNarrow) {
  let least = 1;
  const widths = columns.map(({ width, narrow, grow }, i) => {
    const isKey = i === 0 && !width;
    const size = isKey ? (isNarrow ? 9 : 12) : (((isNarrow && narrow) || width) ?? 7);
    least += size;
    return isKey || grow ? `minmax(${size}rem, ${isKey ? 2 : 1}fr)` : `${size}rem`;
  });
  return { template: widths.join(" "), least };
};

/** Return a text whose part that matches the first word of a search is marked. */
cordwood.markedText = function (text, search) {
  const shown = printable(text);
  const word = search.trim().toLowerCase().split(/\s+/)[0];
  const at = word ? shown.toLowerCase().indexOf(word) : -1;
  if (at < 0) return shown;
  return [
    shown.slice(0, at),
    element("mark", shown.slice(at, at + word.length)),
    shown.slice(at + word.length),
  ];
};

/** Return a column of numbers: those under a name in each row, or those that `of` returns. */
cordwood.numberColumn = function (name, label, format, { of = (row) => row[name], ...options } = {}) {
  const value = (row) => toNumber(of(row));
  const cell = (row) => ((of(row) ?? null) === null ? "" : format(of(row)));
  return { name, label, value, cell, align: "end", width: 7, ...options };
};

/** Return a column of names that are cut where there is no room; a pointer shows all of them. */
cordwood.nameColumn = function (name, label) {
  const cell = (row) => element("span.key", { title: printable(row[name]) }, printable(row[name]));
  return { name, label, value: (row) => naturalKey(row[name]), cell };
};

/** Return the head of a column; `sortBy(column)` follows a click if the column has values. */
cordwood.headCell = function (column, state, sortBy) {
  const { title, label, align = "" } = column;
  const isSorted = state.sort === column.name;
  const direction = !isSorted ? "none" : state.descending ? "descending" : "ascending";
  const sign = { none: "", descending: " ↓", ascending: " ↑" }[direction];
  const signed = [label, element("span", { "aria-hidden": "true" }, sign)];
  const attributes = {
    role: "columnheader",
    class: `cell ${align}`,
    "aria-sort": column.value && direction,
  };
  return element(
    "div",
    attributes,
    column.value
      ? element("button", { title, onclick: () => sortBy(column) }, signed)
      : element("span", { title }, label),
  );
};

/** Return the contents of the first cell of a tree: its key, a link for a leaf. */
cordwood.keyCell = function (entry, column, tree, search) {
  const { node, row, depth, label } = entry;
  const indent = element("span.indent", { style: { width: `${Math.min(depth, 12) * 16}px` } });
  const text = cordwood.markedText(label === "" ? "(root)" : label, search);
  if (row === null) {
    const twisty = element("span.twisty", { "aria-hidden": "true" });
    const leaves = element("span.muted.small", formatCount(node.count));
    return [indent, twisty, element("span.key", text), leaves];
  }
  const href = tree.href?.(row);
  const key = href ? element("a.key", { href, tabindex: -1 }, text) : element("span.key", text);
  const copy = copyButton(row.path);
  copy.tabIndex = -1;
  const twisty = node && element("span.twisty.none");
  return [indent, twisty, key, copy, column.cell?.(row)];
};
