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
  const summaries = new WeakMap(); // of the leaves below a container

  /** Return the names of all states, the most interesting first. */
  cordwood.diffStates = function () {
    return ORDER;
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

  /** Return what the leaves below a container of the tree have: counts of states, sums, largest. */
  function below(node) {
    let result = summaries.get(node);
    if (result) return result;
    result = { states: {}, new_nan: 0, new_inf: 0, relative_l2: NaN };
    for (const row of cordwood.leavesOf(node)) {
      result.states[row.state] = (result.states[row.state] ?? 0) + 1;
      result.new_nan += row.new_nan ?? 0;
      result.new_inf += row.new_inf ?? 0;
      const size = cordwood.toNumber(row.relative_l2);
      if (!(size <= result.relative_l2) && !Number.isNaN(size)) result.relative_l2 = size;
    }
    summaries.set(node, result);
    return result;
  }

  /** Return the largest relative L2 norm below a container. */
  function largestBelow(node) {
    const { relative_l2: size } = below(node);
    if (Number.isNaN(size)) return "";
    const text = `≤ ${cordwood.formatNumber(size)}`;
    return cordwood.element("span", { class: "muted", title: "The largest one below" }, text);
  }

  /** Return the sums of elements that are not finite below a container. */
  function brokenBelow(node) {
    const sums = below(node);
    return sums.new_nan || sums.new_inf ? brokenCell(sums) : "";
  }

  /** Return the states of the leaves below a container, in short. */
  function summary(node) {
    const counts = below(node).states;
    const states = ORDER.filter((state) => counts[state]);
    if (states.length === 1) return cordwood.stateBadge(states[0], counts[states[0]]);
    const words = states.map((state) => `${cordwood.formatCount(counts[state])} ${state}`).join(", ");
    return cordwood.element(
      "span",
      { class: "state-counts", title: words, "aria-label": words },
      states.map((state) =>
        cordwood.element(
          "span",
          { class: `state ${STATES[state].style}` },
          cordwood.element("span", { class: "state-symbol" }, STATES[state].symbol),
          cordwood.formatCount(counts[state]),
        ),
      ),
    );
  }

  /** Return the key path that a renamed leaf had before. */
  function oldPath(row) {
    if (row.renamed_from === null) return "";
    const from = `renamed from ${cordwood.printable(row.renamed_from, 200)}`;
    return cordwood.element("span", { class: "muted small", title: from }, from);
  }

  /** Return the type of a leaf on both sides; one of them if they are equal. */
  function typeCell(row) {
    const before = row.before === null ? null : cordwood.printable(row.before, 60);
    const after = row.after === null ? null : cordwood.printable(row.after, 60);
    if (before === null || after === null || before === after) {
      return cordwood.element("code", { class: "small" }, before ?? after);
    }
    const title = `${before} → ${after}`;
    return cordwood.element("code", { class: "small changed", title }, shortened(before, after));
  }

  /** Return two types as one text without the part that both have. */
  function shortened(before, after) {
    const [a, b] = [before, after].map((text) => /^([\w<>]+)(\[[\d,]*\])$/.exec(text));
    if (a && b && a[1] === b[1]) return `${before} → ${b[2]}`;
    if (a && b && a[2] === b[2]) return `${a[1]} → ${after}`;
    return `${before} → ${after}`;
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
      { name: "path", label: "Leaf", value: (row) => cordwood.naturalKey(row.path), cell: oldPath },
      {
        name: "state",
        label: "State",
        width: 9,
        value: (row) => -ORDER.indexOf(row.state),
        cell: (row) => cordwood.stateBadge(row.state),
        group: summary,
      },
      { name: "type", label: "Type", width: 10, grow: true, wide: true, cell: typeCell },
      numbers("relative_l2", "Relative L2", "The L2 norm of b − a, relative to that of a", {
        width: 7.5,
        group: largestBelow,
      }),
      numbers("share", "Changed", "The share of elements that differ", {
        format: cordwood.formatShare,
        wide: true,
        width: 6,
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
        width: 7,
      }),
    ];
  };
})(globalThis.cordwood);
