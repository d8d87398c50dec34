// A leaf of a difference: its state, its row in the table, and its own view.
const {
  ResourceError, append, element, facts, fetchResource, formatBytes, formatCount, formatNumber, formatShare,
  go, hasResource, inExport, keyPath, leafNumber, leafPart, leavesOf, link, naturalKey, panel, printable,
  replace, resourceName, rowsOf, task, toNumber,
} = cordwood;

// A word and a symbol for each state of a leaf, besides its colour, in the order of interest.
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

cordwood.leafStates = STATES;

/** Return a state as a symbol and a word, or a count of leaves. */
cordwood.stateBadge = function (state, count = null) {
  const { symbol = "?", style = "", meaning = "" } = STATES[state] ?? {};
  return element(
    "span",
    { class: `state ${style}`, title: meaning },
    element("span.state-symbol", { "aria-hidden": "true" }, symbol),
    count === null ? state : `${formatCount(count)} ${state}`,
  );
};

/** Return what the leaves below a container of the tree have: counts of states, sums, largest. */
function below(node) {
  let result = summaries.get(node);
  if (result) return result;
  result = { states: {}, new_nan: 0, new_inf: 0, relative_l2: NaN };
  for (const row of leavesOf(node)) {
    result.states[row.state] = (result.states[row.state] ?? 0) + 1;
    result.new_nan += row.new_nan ?? 0;
    result.new_inf += row.new_inf ?? 0;
    const size = toNumber(row.relative_l2);
    if (!(size <= result.relative_l2) && !Number.isNaN(size)) result.relative_l2 = size;
  }
  summaries.set(node, result);
  return result;
}

/** Return the largest relative L2 norm below a container. */
function largestBelow(node) {
  const { relative_l2: size } = below(node);
  if (Number.isNaN(size)) return "";
  const text = `≤ ${formatNumber(size)}`;
  return element("span.muted", { title: "The largest one below" }, text);
}

/** Return the states of the leaves below a container, in short. */
function summary(node) {
  const counts = below(node).states;
  const states = ORDER.filter((state) => counts[state]);
  if (states.length === 1) return cordwood.stateBadge(states[0], counts[states[0]]);
  const words = states.map((state) => `${formatCount(counts[state])} ${state}`).join(", ");
  return element(
    "span.state-counts",
    { title: words, "aria-label": words },
    states.map((state) =>
      element(
        "span",
        { class: `state ${STATES[state].style}` },
        element("span.state-symbol", STATES[state].symbol),
        formatCount(counts[state]),
      ),
    ),
  );
}

/** Return the key path that a renamed leaf had before. */
function oldPath(row) {
  if (row.renamed_from === null) return "";
  const from = `renamed from ${printable(row.renamed_from, 200)}`;
  return element("span.muted.small", { title: from }, from);
}

/** Return the type of a leaf on both sides; one of them if they are equal. */
function typeCell(row) {
  const [before, after] = [row.before, row.after].map((text) => text && printable(text, 60));
  if (before === null || after === null || before === after) {
    return element("code.small", before ?? after);
  }
  // The part that both have stands there once.
  const [a, b] = [before, after].map((text) => /^([\w<>]+)(\[[\d,]*\])$/.exec(text) ?? [text]);
  const second = a[1] && a[1] === b[1] ? b[2] : after;
  const first = second === after && a[2] && a[2] === b[2] ? a[1] : before;
  return element("code.small.changed", { title: `${before} → ${after}` }, `${first} → ${second}`);
}

/** Return the counts of elements that are not finite in b but were in a, of a row or of many. */
function brokenCell(row, none = row.new_nan === null ? "" : "0") {
  const parts = [];
  if (row.new_nan) parts.push(`${formatCount(row.new_nan)} NaN`);
  if (row.new_inf) parts.push(`${formatCount(row.new_inf)} inf`);
  return parts.length ? element("strong.damaged", parts.join(", ")) : none;
}

/** Return the columns of the table of a difference. */
cordwood.diffColumns = function () {
  const number = (name, label, title, format = formatNumber, options = { wide: true }) =>
    cordwood.numberColumn(name, label, format, { title, width: 5.5, ...options });
  return [
    { name: "path", label: "Leaf", value: (row) => naturalKey(row.path), cell: oldPath },
    {
      name: "state",
      label: "State",
      width: 9,
      value: (row) => -ORDER.indexOf(row.state),
      cell: (row) => cordwood.stateBadge(row.state),
      group: summary,
    },
    { name: "type", label: "Type", width: 10, grow: true, wide: true, cell: typeCell },
    number("relative_l2", "Relative L2", "The L2 norm of b − a, relative to that of a", formatNumber, {
      width: 7.5,
      group: largestBelow,
    }),
    number("share", "Changed", "The share of elements that differ", formatShare, { wide: true, width: 6 }),
    number("max_abs", "Max abs", "The largest |b − a|"),
    number("cosine", "Cosine", "The cosine of the angle between a and b"),
    number("sign_flips", "Sign flips", "Elements that change their sign", formatCount),
    {
      name: "broken",
      label: "New NaN, inf",
      title: "Elements that are NaN or infinite in b, but not in a",
      value: (row) => (row.new_nan === null ? NaN : row.new_nan + row.new_inf),
      cell: brokenCell,
      group: (node) => brokenCell(below(node), ""),
      align: "end",
      width: 7.5,
    },
    number("size_bytes", "Size", "The size of the larger side", formatBytes, {
      sum: true,
      wide: true,
      width: 7,
    }),
  ];
};

const READ_AT_ONCE_BYTES = 64 << 20; // so few bytes are read without a click
const EQUAL = ["equal", "identical", "renamed"];
const furthest = new Map(); // for each pair, the resource that has read the most so far

/** Return the name of the resource of a pair that is at hand: values before digests. */
cordwood.diffAtHand = function (a, b) {
  const name = (read) => resourceName("diff", a, b, read);
  if (!inExport) return furthest.get(name("")) ?? name("digests");
  return cordwood.heldResource(["all", "sample", "digests"], "diff", a, b) ?? name("digests");
};

/** Keep which resource of a pair is at hand from now on. */
cordwood.keepAtHand = function (a, b, name) {
  furthest.set(resourceName("diff", a, b, ""), name);
};

/** Return true if so few bytes are read without a click. */
cordwood.readsAtOnce = function (bytes) {
  return bytes < READ_AT_ONCE_BYTES;
};

/** Return the address of a row: its difference, or the leaf if it is on one side only. */
cordwood.diffRowLink = function (a, b, row) {
  if (row.i === null) return link("leaf", [b, leafPart(row.path, row.j)]);
  if (row.j === null) return link("leaf", [a, leafPart(row.path, row.i)]);
  return link("diff-leaf", [a, b, leafPart(row.path, row.number)]);
};

/** Draw the difference of a leaf. */
cordwood.views["diff-leaf"] = async function (root, route) {
  const [a, b, part] = route.parts;
  const up = link("diff", [a, b]);
  cordwood.setPlace([a, b], part);
  cordwood.setKeys({ up: () => go(up) });
  const result = await fetchResource(cordwood.diffAtHand(a, b), { signal: route.signal });
  const rows = rowsOf(result.rows);
  const row = rows[leafNumber(result.rows.path, part)];
  if (!row) {
    throw new ResourceError("NoView", `Neither side has a leaf ${printable(part)}.`);
  }
  cordwood.setPlace([a, b], row.path);
  const neighbours = rows.filter((each) => each.i !== null && each.j !== null && !EQUAL.includes(each.state));
  const step = stepper(a, b, neighbours, row);
  cordwood.setKeys({ ...step.keys, up: () => go(up) });
  const badge = element("span", cordwood.stateBadge(row.state));
  const body = element("div.panels");
  append(root, head(a, b, row, badge, step.element), body);
  const onResult = ({ statistics, complete }) => {
    if (row.state !== "unread" && row.state !== "changed") return;
    const differs = statistics.differing || statistics.bits;
    if (differs || complete) replace(badge, cordwood.stateBadge(differs ? "changed" : "equal"));
  };
  await drawBody(body, a, b, row, route.signal, onResult);
};

/** Return the buttons and the keys that lead to the leaves before and after that differ. */
function stepper(a, b, rows, row) {
  const before = rows.findLast((each) => each.number < row.number);
  const after = rows.find((each) => each.number > row.number);
  const open = (target) => target && go(cordwood.diffRowLink(a, b, target));
  const button = (target, icon, label) =>
    cordwood.iconButton(icon, `${label} leaf that differs`, () => open(target), { disabled: !target });
  const buttons = [button(before, "previous", "Previous"), button(after, "next", "Next")];
  const [previous, next] = [() => open(before), () => open(after)];
  return {
    element: element("span.button-group", buttons),
    keys: { k: previous, ArrowUp: previous, j: next, ArrowDown: next },
  };
}

/** Return the heading: key path, state, and the type on both sides. */
function head(a, b, row, badge, step) {
  const sides = [
    ["a", a, row.i, row.before],
    ["b", b, row.j, row.after],
  ].map(([letter, source, number, type]) => {
    const path = letter === "a" ? (row.renamed_from ?? row.path) : row.path;
    const href = number === null ? null : link("leaf", [source, leafPart(path, number)]);
    const text = element("code", printable(type ?? "absent", 200));
    return element(
      "div.side",
      element("span.badge", letter),
      href && hasResource(resourceName("leaf", source, number))
        ? element("a", { href, title: "Open this side" }, text)
        : text,
    );
  });
  return [
    element("div.diff-leaf-head", element("h1", keyPath(row.path)), badge, element("span.spacer"), step),
    row.renamed_from !== null && element("p.muted", "renamed from ", keyPath(row.renamed_from)),
    element("div.diff-head", sides[0], "→", sides[1]),
  ];
}

/** Draw what is known about the change, after reading a sample or all of it. */
async function drawBody(body, a, b, row, signal, onResult) {
  const note = whyNothing(row);
  if (note) {
    replace(body, panel("Change", element("p", note)));
    return;
  }
  const name = (read) => resourceName("diff-leaf", a, b, row.i, row.j, read);
  const place = element("div.panels");
  /** Draw a result. */
  function show(result) {
    replace(place, drawing(result));
    onResult(result);
  }
  if (inExport) {
    const held = cordwood.heldResource(["all"], "diff-leaf", a, b, row.i, row.j);
    replace(body, place);
    show(await fetchResource(held ?? name("sample"), { signal }));
    return;
  }
  const first = cordwood.readsAtOnce(row.size_bytes) ? "all" : "sample";
  const more = element("div");
  const run = (read) => async (onProgress, each) => {
    const result = await fetchResource(name(read), { onProgress, signal: each });
    show(result);
    const title = `Compare all elements (reads ${formatBytes(result.size_bytes)} of each side)`;
    replace(more, !result.complete && task({ title, run: run("all") }));
  };
  replace(body, task({ title: "Compare values", start: true, run: run(first) }), place, more);
}

/** Return why there is nothing to read, or null. */
function whyNothing(row) {
  if (row.i === null || row.j === null) return `This leaf is only in ${row.i === null ? "b" : "a"}.`;
  if (row.state === "identical") return "Both sides are identical by digest: nothing was read.";
  if (row.state === "renamed") return "The bytes are equal; only the key path is another one.";
  if (row.state === "reshaped") return "The shapes differ, so elements cannot be paired.";
  const isArray = (text) => /\[[\d,]*\]$/.test(text);
  if (!isArray(row.before) || !isArray(row.after)) {
    return "This is no array of numbers; both values are shown above.";
  }
  return null;
}

/** Return the statistics and the charts of a change. */
function drawing(result) {
  const { histogram, strip, statistics, complete } = result;
  const share = (column) => `${((100 * column) / strip.length).toFixed(1)} %`; // of the elements before it
  const charts = [
    histogram &&
      cordwood.charts.histogram({
        ...histogram,
        label: "Histogram of the change, b − a",
        size: complete ? statistics.size : null,
      }),
    strip.length > 1 &&
      cordwood.charts.strip({
        values: strip,
        label: "Mean |b − a| along the elements, in C order",
        place: (_, column) => `elements ${share(column)} to ${share(column + 1)}`,
      }),
  ];
  const [read, all] = [formatBytes(result.read_bytes), formatBytes(result.size_bytes)];
  const note = `From ${complete ? `all ${read}` : `a sample: ${read} of ${all}`} of each side.`;
  return [
    panel("Change", element("p.muted", note), facts(pairs(statistics))),
    charts.some(Boolean) && panel("Where and how much", charts),
  ];
}

/** Return the statistics of a change as names and values. */
function pairs(statistics) {
  const { size, differing, bits } = statistics;
  const broken = (count) => (count ? element("strong.damaged", formatCount(count)) : "0");
  return [
    ["changed", `${formatShare(statistics.share)} (${formatCount(differing)} of ${formatCount(size)})`],
    ["relative L2", formatNumber(statistics.relative_l2)],
    ["L2 of b − a", formatNumber(statistics.l2)],
    ["max |b − a|", formatNumber(statistics.max_abs)],
    ["max relative", formatNumber(statistics.max_rel)],
    ["cosine", statistics.cosine === null ? null : Number(toNumber(statistics.cosine).toFixed(6))],
    ["sign flips", formatCount(statistics.sign_flips)],
    ["new NaN", broken(statistics.new_nan)],
    ["new infinite", broken(statistics.new_inf)],
    ["equal but for bits", bits ? formatCount(bits) : null],
  ];
}
