"use strict";
// The states of leaves between two checkpoints: a word and a symbol for each, besides its colour.
(function (cordwood) {
  // In the order of interest.
  const STATES = {
    changed: { symbol: "≠", style: "changed", meaning: "the elements differ" },
    added: { symbol: "+", style: "added", meaning: "only in b" },
    removed: { symbol: "−", style: "removed", meaning: "only in a" },
    renamed: { symbol: "→", style: "changed", meaning: "the same bytes at another key path" },
    reshaped: { symbol: "⊞", style: "changed", meaning: "another shape" },
    recast: { symbol: "≈", style: "changed", meaning: "another dtype or kind" },
    unread: { symbol: "?", style: "", meaning: "the digests do not tell: compare the values" },
    equal: { symbol: "=", style: "equal", meaning: "equal elements, which were read" },
    identical: { symbol: "=", style: "equal", meaning: "equal by digest: nothing was read" },
  };
  const ORDER = Object.keys(STATES);
  const counts = new WeakMap(); // of the states of the leaves below a container

  /** Return the names of all states, the most interesting first. */
  cordwood.diffStates = function () {
    return ORDER;
  };

  /** Return the symbol of a state. */
  cordwood.stateSymbol = function (state) {
    return STATES[state]?.symbol ?? "?";
  };

  /** Return what a state means. */
  cordwood.stateMeaning = function (state) {
    return STATES[state]?.meaning ?? "";
  };

  /** Return a state as a symbol and a word, or a count of leaves. */
  cordwood.stateBadge = function (state, count = null) {
    const { symbol = "?", style = "", meaning = "" } = STATES[state] ?? {};
    return cordwood.element(
      "span",
      { class: `state ${style}`, title: meaning },
      cordwood.element("span", { class: "state-symbol", "aria-hidden": "true" }, symbol),
      count === null ? state : `${cordwood.formatCount(count)} ${state}`,
    );
  };

  /** Return the number of leaves of each state below a container of the tree. */
  function countsOf(node) {
    let result = counts.get(node);
    if (!result) {
      result = {};
      for (const row of cordwood.leavesOf(node)) result[row.state] = (result[row.state] ?? 0) + 1;
      counts.set(node, result);
    }
    return result;
  }

  /** Return the largest value of a column among the leaves below a container; NaN if there is none. */
  function largest(node, name) {
    let most = NaN;
    for (const row of cordwood.leavesOf(node)) {
      const value = cordwood.toNumber(row[name]);
      if (!(value <= most) && !Number.isNaN(value)) most = value;
    }
    return most;
  }

  /** Return the largest value of a column below a container. */
  function largestCell(name, format) {
    return (node) => {
      const value = largest(node, name);
      if (Number.isNaN(value)) return "";
      return cordwood.element("span", { class: "muted", title: "The largest one below" }, `≤ ${format(value)}`);
    };
  }

  /** Return the sums of elements that are not finite below a container. */
  function brokenBelow(node) {
    const sums = { new_nan: 0, new_inf: 0 };
    for (const row of cordwood.leavesOf(node)) {
      sums.new_nan += row.new_nan ?? 0;
      sums.new_inf += row.new_inf ?? 0;
    }
    return sums.new_nan || sums.new_inf ? brokenCell(sums) : "";
  }

  /** Return the states of the leaves below a container, in short. */
  function summary(node) {
    const below = countsOf(node);
    const states = ORDER.filter((state) => below[state]);
    if (states.length === 1) return cordwood.stateBadge(states[0], below[states[0]]);
    const words = states.map((state) => `${cordwood.formatCount(below[state])} ${state}`).join(", ");
    return cordwood.element(
      "span",
      { class: "state-counts", title: words, "aria-label": words },
      states.map((state) =>
        cordwood.element(
          "span",
          { class: `state ${STATES[state].style}` },
          cordwood.element("span", { class: "state-symbol" }, STATES[state].symbol),
          cordwood.formatCount(below[state]),
        ),
      ),
    );
  }

  /** Return the state of a leaf, and the key path that it had before. */
  function stateCell(row) {
    if (row.state !== "renamed") return cordwood.stateBadge(row.state);
    const from = cordwood.printable(row.renamed_from ?? "", 200);
    return [
      cordwood.stateBadge(row.state),
      cordwood.element("span", { class: "muted small", title: `renamed from ${from}` }, ` from ${from}`),
    ];
  }

  /** Return the type of a leaf on both sides; one of them if they are equal. */
  function typeCell(row) {
    const before = row.before === null ? null : cordwood.printable(row.before, 60);
    const after = row.after === null ? null : cordwood.printable(row.after, 60);
    if (before === null || after === null || before === after) {
      return cordwood.element("code", { class: "small" }, before ?? after);
    }
    const text = `${before} → ${after}`;
    return cordwood.element("code", { class: "small changed", title: text }, text);
  }

  /** Return the counts of elements that are not finite in b but were in a. */
  function brokenCell(row) {
    const parts = [];
    if (row.new_nan) parts.push(`${cordwood.formatCount(row.new_nan)} NaN`);
    if (row.new_inf) parts.push(`${cordwood.formatCount(row.new_inf)} inf`);
    if (!parts.length) return row.new_nan === null ? "" : "0";
    return cordwood.element("strong", { class: "damaged" }, parts.join(", "));
  }

  /** Return a column of numbers. */
  function numbers(name, label, title, { format = cordwood.formatNumber, ...rest } = {}) {
    const value = (row) => cordwood.toNumber(row[name]);
    const cell = (row) => (row[name] === null ? "" : format(row[name]));
    return { name, label, title, value, cell, align: "end", width: 5.5, ...rest };
  }

  /** Return the columns of the table of a difference. */
  cordwood.diffColumns = function () {
    return [
      { name: "path", label: "Leaf", value: (row) => cordwood.naturalKey(row.path) },
      {
        name: "state",
        label: "State",
        width: 10,
        value: (row) => -ORDER.indexOf(row.state),
        cell: stateCell,
        group: summary,
      },
      { name: "type", label: "Type", width: 10, wide: true, cell: typeCell },
      numbers("relative_l2", "Relative L2", "The L2 norm of b − a, relative to that of a", {
        width: 6.5,
        group: largestCell("relative_l2", cordwood.formatNumber),
      }),
      numbers("share", "Changed", "The share of elements that differ", {
        format: cordwood.formatShare,
        wide: true,
      }),
      numbers("max_abs", "Max abs", "The largest |b − a|", { wide: true }),
      numbers("cosine", "Cosine", "The cosine of the angle between a and b", { wide: true }),
      numbers("sign_flips", "Sign flips", "Elements that change their sign", {
        format: cordwood.formatCount,
        wide: true,
      }),
      {
        name: "broken",
        label: "New NaN, inf",
        title: "Elements that are NaN or infinite in b, but not in a",
        value: (row) => (row.new_nan === null ? NaN : row.new_nan + row.new_inf),
        cell: brokenCell,
        group: brokenBelow,
        align: "end",
        width: 7.5,
      },
      numbers("size_bytes", "Size", "The size of the larger side", {
        format: cordwood.formatBytes,
        sum: true,
        wide: true,
        width: 6,
      }),
    ];
  };
})(globalThis.cordwood);
