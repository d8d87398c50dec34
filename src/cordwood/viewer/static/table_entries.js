"use strict";
// What a table shows: a tree with folds, or a flat list if it is sorted. Pure functions of its rows.
(function (cordwood) {
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
    for (let child of node.children) {
      if (entries.length % 1024 === 0) yield;
      let label = child.key;
      while (child.children?.length === 1) {
        child = child.children[0];
        label += `/${child.key}`;
      }
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
})(globalThis.cordwood);
