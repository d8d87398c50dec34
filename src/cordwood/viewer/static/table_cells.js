"use strict";
// The cells of a table: their widths, the head, and the key path of a row.
(function (cordwood) {
  /** Return the widths of columns as a grid template, and their sum in rem. */
  cordwood.columnWidths = function (columns, isNarrow) {
    let least = 1;
    const widths = columns.map(({ width, narrow, grow }, i) => {
      const isKey = i === 0 && !width;
      const size = isKey ? (isNarrow ? 9 : 12) : ((isNarrow && narrow) || width) ?? 7;
      least += size;
      return isKey || grow ? `minmax(${size}rem, ${isKey ? 2 : 1}fr)` : `${size}rem`;
    });
    return { template: widths.join(" "), least };
  };

  /** Return a text whose part that matches the first word of a search is marked. */
  cordwood.markedText = function (text, search) {
    const shown = cordwood.printable(text);
    const word = search.trim().toLowerCase().split(/\s+/)[0];
    const at = word ? shown.toLowerCase().indexOf(word) : -1;
    if (at < 0) return shown;
    return [
      shown.slice(0, at),
      cordwood.element("mark", {}, shown.slice(at, at + word.length)),
      shown.slice(at + word.length),
    ];
  };

  /** Return the head of a column; `sortBy(column)` follows a click if the column has values. */
  cordwood.headCell = function (column, state, sortBy) {
    const { element } = cordwood;
    const sorted = state.sort === column.name;
    const direction = sorted ? (state.descending ? "descending" : "ascending") : "none";
    const sign = sorted ? (state.descending ? " ↓" : " ↑") : "";
    const label = column.value
      ? element(
          "button",
          { type: "button", title: column.title, onclick: () => sortBy(column) },
          column.label,
          element("span", { class: "sort-sign", "aria-hidden": "true" }, sign),
        )
      : element("span", { title: column.title }, column.label);
    return element(
      "div",
      {
        role: "columnheader",
        class: `cell ${column.align ?? ""}`,
        "aria-sort": column.value ? direction : null,
      },
      label,
    );
  };

  /** Return the contents of the first cell of a tree: its key, a link for a leaf. */
  cordwood.keyCell = function (entry, column, tree, search) {
    const { element } = cordwood;
    const { node, row, depth, label } = entry;
    const indent = element("span", { class: "indent" });
    indent.style.width = `${Math.min(depth, 12) * 16}px`;
    const text = cordwood.markedText(label === "" ? "(root)" : label, search);
    if (row === null) {
      const twisty = element("span", { class: "twisty", "aria-hidden": "true" });
      const leaves = element("span", { class: "muted small" }, cordwood.formatCount(node.count));
      return [indent, twisty, element("span", { class: "key" }, text), leaves];
    }
    const href = tree.href?.(row);
    const key = href
      ? element("a", { class: "key", href, tabindex: -1 }, text)
      : element("span", { class: "key" }, text);
    const copy = cordwood.copyButton(row.path);
    copy.tabIndex = -1;
    const twisty = node && element("span", { class: "twisty none" });
    return [indent, twisty, key, copy, column.cell?.(row)];
  };
})(globalThis.cordwood);
