// The view of a difference: verdict, matrix of layers and kinds, tree of leaves, optimizer.
const {
  append, counted, diffColumns, element, fetchResource, formatBytes, formatCount, formatNumber, go,
  hasResource, inExport, layerMatrix, link, matrixFindings, panel, printable, replace, resourceName, rowsOf,
  setQuery, leafStates, stateBadge, task,
} = cordwood;

/** Draw the difference of two sources: first by digests, then by values. */
cordwood.views.diff = async function (root, route) {
  const [a, b] = route.parts;
  const name = (read) => resourceName("diff", a, b, read);
  const state = stateOf(route.query);
  const parts = {
    verdict: element("div.verdict", { "aria-live": "polite" }),
    reading: element("div.reading"),
    matrix: element("div"),
    structure: element("div"),
    filters: element("div.filters", { role: "group", "aria-label": "Filter by state" }),
    table: element("div"),
    optimizer: element("div"),
  };
  let result = null;
  let rows = [];
  let table = null;

  if (cordwood.start.kind === "run") cordwood.setPlace([a, b]);
  append(root, cordwood.diffHead(a, b), parts.verdict, parts.reading);
  replace(parts.verdict, element("p.muted", "Comparing digests…"));
  const signal = route.signal;
  await show(await fetchResource(cordwood.diffAtHand(a, b), { signal }));
  const leaves = panel("Leaves", parts.filters, parts.table);
  append(root, leaves, parts.matrix, parts.optimizer, parts.structure);
  offerValues();
  cordwood.setKeys({ "/": () => table.focusSearch() });

  /** Show a result in place of the one before. */
  async function show(value) {
    result = value;
    rows = rowsOf(result.rows);
    drawVerdict(parts.verdict, result);
    drawMatrix();
    drawFilters();
    drawStructure(parts.structure, result);
    drawOptimizer(parts.optimizer, result);
    if (table) await table.setRows(filtered());
    else table = makeTable();
  }

  /** Read what the digests leave open: at once if it is little, else when the user asks. */
  function offerValues() {
    const undecided = ["changed", "recast", "unread"].some((each) => result.counts[each]);
    const settled = result.complete || !undecided;
    root.dataset.complete = String(settled);
    if (settled) return replace(parts.reading);
    if (inExport) return replace(parts.reading, leftOut(result));
    const size = formatBytes(result.unread_bytes);
    const isLittle = cordwood.readsAtOnce(result.unread_bytes);
    const isFirst = result.read === "digests";
    return replace(
      parts.reading,
      isFirst && !isLittle && reading("sample", "Compare a sample of the values"),
      reading("all", `Compare all values (reads ${size} of each side)`, isFirst && isLittle),
    );
  }

  /** Return a task that reads values, and shows them in place of the result before. */
  function reading(read, title, start = false) {
    return task({
      title,
      start,
      run: async (onProgress, signal) => {
        const value = await fetchResource(name(read), { onProgress, signal });
        cordwood.keepAtHand(a, b, name(read));
        await show(value);
        offerValues();
      },
    });
  }

  /** Draw the matrix; a click on a cell opens its leaf, or shows its leaves in the table. */
  function drawMatrix() {
    if (!result.matrices.length) return replace(parts.matrix);
    const matrix = layerMatrix({
      matrices: result.matrices,
      group: state.group,
      findings: false,
      onGroup: (group) => {
        state.group = group;
        setQuery({ group });
      },
      onPick: (cell) => {
        if (cell.leaves.length === 1) return go(cordwood.diffRowLink(a, b, rows[cell.leaves[0]]));
        refilter(cell.name);
        parts.filters.scrollIntoView({ block: "start" });
      },
    });
    return replace(parts.matrix, panel("Layers and kinds", matrix));
  }

  /** Return the table of the leaves. */
  function makeTable() {
    const made = cordwood.table({
      columns: diffColumns(),
      rows: filtered(),
      label: "Leaves of both sides",
      tree: { keys: (row) => row.keys, href: (row) => cordwood.diffRowLink(a, b, row) },
      rowClass: (row) => `state-${row.state}`,
      initial: { search: state.search, sort: state.sort, descending: state.descending },
      onChange: ({ search, sort, descending }) =>
        setQuery({ search, sort: sort && `${descending ? "-" : ""}${sort}` }),
    });
    replace(parts.table, made.element);
    return made;
  }

  /** Return the rows that the filters let through. */
  function filtered() {
    const cell = cellOf(result.matrices, state.cell);
    const picked = cell && new Set(cell.leaves);
    return rows.filter(
      (row) => (!state.states.size || state.states.has(row.state)) && (!picked || picked.has(row.number)),
    );
  }

  /** Draw a button for each state that occurs, and one for the cell of the matrix. */
  function drawFilters() {
    const present = Object.keys(leafStates).filter((name) => result.counts[name]);
    const cell = cellOf(result.matrices, state.cell);
    const words = cell?.words.map((word) => printable(word, 40)).join(" · ");
    const all = { "aria-label": `Show all cells, not only ${words}`, onclick: () => refilter(null) };
    const sign = element("span", { "aria-hidden": "true" }, " ✕");
    replace(parts.filters, present.map(chip), words && element("button.chip.pressed", all, words, sign));
  }

  /** Return the button of a state. */
  function chip(name) {
    const pressed = state.states.has(name);
    const attributes = {
      "aria-pressed": String(pressed),
      title: `Show ${pressed ? "all" : "only these"}: ${leafStates[name].meaning}`,
      onclick: () => {
        if (!state.states.delete(name)) state.states.add(name);
        refilter(state.cell);
        parts.filters.querySelector(`[data-state="${name}"]`)?.focus();
      },
      "data-state": name,
    };
    return element(
      pressed ? "button.chip.pressed" : "button.chip",
      attributes,
      stateBadge(name, result.counts[name]),
    );
  }

  /** Follow a change of the filters: of states, or to one cell of the matrix. */
  function refilter(cell) {
    state.cell = cell;
    setQuery({ states: [...state.states].join(","), cell: state.cell });
    drawFilters();
    table.setRows(filtered());
  }
};

/** Return what the address says of the filters and of the table. */
function stateOf(query) {
  const sort = query.get("sort");
  const names = (query.get("states") ?? "").split(",");
  return {
    states: new Set(names.filter((name) => name in leafStates)),
    cell: query.get("cell"),
    group: query.get("group"),
    search: query.get("search") ?? "",
    sort: sort && sort.replace(/^-/, ""),
    descending: sort?.startsWith("-") ?? false,
  };
}

/** Return the cell of the matrices that a name stands for; undefined if there is none. */
function cellOf(matrices, name) {
  const cells = (matrix) => matrix.leaves.map((_, i) => cordwood.matrixCell(matrix, i));
  return name ? matrices.flatMap(cells).find((cell) => cell.name === name) : undefined;
}

/** Return the heading: what is compared, with selectors if both are steps of a run. */
cordwood.diffHead = function (a, b) {
  const back = { href: link("diff", [b, a]), title: "Compare in the other direction" };
  const sides = { a, b };
  const [before, after] = Object.entries(sides).map(([letter, source]) => {
    const path = printable(cordwood.start.paths[source] ?? source, 300);
    const shown =
      cordwood.start.kind === "run"
        ? selector(letter, sides)
        : element("a", { href: link("checkpoint", [source]), title: path }, element("code", path));
    return element("span.side", element("span.badge", letter), shown);
  });
  const arrow = element("span.muted", { "aria-label": "to" }, "→");
  const canSwap = hasResource(resourceName("diff", b, a, "digests"));
  const swap = canSwap && element("a.button", back, "⇄ Swap");
  return element("div.diff-head", element("h1", "Difference"), before, arrow, after, swap);
};

/** Return a selector of the step of one side. */
function selector(letter, sides) {
  const pairWith = (step) => Object.values({ ...sides, [letter]: step });
  const steps = cordwood.start.sources.filter(
    (step) => step === sides[letter] || hasResource(resourceName("diff", ...pairWith(step), "digests")),
  );
  const choices = steps.map((step) => [step, cordwood.sourceName(step)]);
  const open = (step) => go(link("diff", pairWith(step)));
  return cordwood.select(`Step of side ${letter}`, choices, sides[letter], open);
}

/** Draw the verdict and its numbers. */
function drawVerdict(place, result) {
  const [symbol, style] =
    result.equal === null ? ["?", ""] : result.equal ? ["=", "added"] : ["≠", "changed"];
  const { differing_bytes: bytes, size_bytes: all, equal_by_digest: equal, read_bytes: read } = result;
  const how = result.complete ? "" : ": values are from a sample";
  const facts = [
    result.differing && `${formatBytes(bytes)} of ${formatBytes(all)} in leaves that differ`,
    equal && `${counted(equal, "leaf", "leaves")} equal by digest`,
    read ? `${formatBytes(read)} read of each side${how}` : "no values read",
  ];
  replace(
    place,
    element(
      "p",
      { class: `verdict-line ${style}` },
      element("span.state-symbol", { "aria-hidden": "true" }, symbol),
      element("strong", sentence(result.verdict)),
    ),
    element("p.muted", facts.filter(Boolean).join(" · ")),
    result.matrices.slice(0, 1).map(matrixFindings),
  );
}

/** Return a text with a capital letter first, and with separators in its numbers. */
function sentence(text) {
  const numbered = text.replace(/\d{4,}/g, formatCount);
  return numbered.charAt(0).toUpperCase() + numbered.slice(1);
}

/** Draw the containers that are of another kind. */
function drawStructure(place, { structure, structure_count: count }) {
  if (!count) return replace(place);
  const lines = structure.map((line) => element("li", element("code", printable(line, 300))));
  if (count > lines.length) lines.push(element("li", `and ${count - lines.length} more`));
  return replace(place, panel("Containers of another kind", element("ul.structure", lines)));
}

/** Draw the facts about the optimizer. */
function drawOptimizer(place, { optimizer }) {
  if (!optimizer.length) return replace(place);
  const head = ["", "a", "b", "change", ""].map((label) => element("th", { scope: "col" }, label));
  const lines = optimizer.map((fact) =>
    element(
      "tr",
      element("th", { scope: "row" }, printable(fact.name, 80)),
      element("td.right", formatNumber(fact.a)),
      element("td.right", formatNumber(fact.b)),
      element("td.right", changeText(fact)),
      element("td.muted", printable(fact.text, 300)),
    ),
  );
  const table = element("table.optimizer", element("thead", element("tr", head)), element("tbody", lines));
  return replace(place, panel("Update and optimizer", element("div.scrolls", table)));
}

/** Return the change of a fact: a difference of counts, or a relative L2 norm. */
function changeText(fact) {
  if (fact.change === null) return "";
  if (fact.name !== "steps") return formatNumber(fact.change);
  return `${fact.change > 0 ? "+" : ""}${formatCount(fact.change)}`;
}

/** Return a note that says why an export does not show all values. */
function leftOut(result) {
  const what = result.read === "digests" ? "the comparison by digests" : "a sample of the values";
  const command = element("code", printable(cordwood.start.command, 400));
  const words = `This file holds ${what} only. To compare all values, run: `;
  return element("p.muted", words, command);
}
