"use strict";
// Many rows as a tree or in an order. The generators run in small tasks: `cordwood.inTasks`.
(function (cordwood) {
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
        j === second.length ||
        (i < first.length && compare(first[i].value, second[j].value, descending) <= 0);
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
})(globalThis.cordwood);
