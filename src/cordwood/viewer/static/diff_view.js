"use strict";
// The view of a difference: verdict, matrix of layers and kinds, tree of leaves, optimizer.
(function (cordwood) {
  const READ_AT_ONCE_BYTES = 64 << 20; // so few bytes are read without a click
  const furthest = new Map(); // for each pair, the resource that has read the most so far

  /** Return the name of the resource of a pair that is at hand: values before digests. */
  cordwood.diffAtHand = function (a, b) {
    const name = (read) => cordwood.resourceName("diff", a, b, read);
    if (!cordwood.inExport) return furthest.get(name("")) ?? name("digests");
    return ["all", "sample"].map(name).find(cordwood.hasResource) ?? name("digests");
  };

  /** Draw the difference of two sources: first by digests, then by values. */
  cordwood.views.diff = async function (root, route) {
    const { element } = cordwood;
    const [a, b] = route.parts;
    const name = (read) => cordwood.resourceName("diff", a, b, read);
    const state = stateOf(route.query);
    const parts = {
      verdict: element("div", { class: "verdict", "aria-live": "polite" }),
      reading: element("div", { class: "reading" }),
      matrix: element("div", {}),
      structure: element("div", {}),
      filters: element("div", { class: "filters", role: "group", "aria-label": "Filter by state" }),
      table: element("div", {}),
      optimizer: element("div", {}),
    };
    let result = null;
    let rows = [];
    let table = null;

    cordwood.setBreadcrumbs(breadcrumbs(a, b));
    cordwood.append(root, cordwood.diffHead(a, b), parts.verdict, parts.reading);
    cordwood.replace(parts.verdict, element("p", { class: "muted" }, "Comparing digests…"));
    const signal = route.signal;
    await show(await cordwood.fetchResource(cordwood.diffAtHand(a, b), { signal }));
    const leaves = cordwood.panel("Leaves", parts.filters, parts.table);
    cordwood.append(root, leaves, parts.matrix, parts.optimizer, parts.structure);
    offerValues();
    cordwood.setKeys({ "/": () => table.focusSearch() });

    /** Show a result in place of the one before. */
    async function show(value) {
      result = value;
      rows = cordwood.rowsOf(result.rows);
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
      if (settled) return cordwood.replace(parts.reading);
      if (cordwood.inExport) return cordwood.replace(parts.reading, leftOut(result));
      const size = cordwood.formatBytes(result.unread_bytes);
      const isLittle = result.unread_bytes < READ_AT_ONCE_BYTES;
      const isFirst = result.read === "digests";
      return cordwood.replace(
        parts.reading,
        isFirst && !isLittle && reading("sample", "Compare a sample of the values"),
        reading("all", `Compare all values (reads ${size} of each side)`, isFirst && isLittle),
      );
    }

    /** Return a task that reads values, and shows them in place of the result before. */
    function reading(read, title, start = false) {
      return cordwood.task({
        title,
        start,
        run: async (onProgress, signal) => {
          const value = await cordwood.fetchResource(name(read), { onProgress, signal });
          furthest.set(name(""), name(read));
          await show(value);
          offerValues();
        },
      });
    }

    /** Draw the matrix; a click on a cell opens its leaf, or shows its leaves in the table. */
    function drawMatrix() {
      if (!result.matrices.length) return cordwood.replace(parts.matrix);
      const matrix = cordwood.layerMatrix({
        matrices: result.matrices,
        group: state.group,
        findings: false,
        onGroup: (group) => {
          state.group = group;
          cordwood.setQuery({ group });
        },
        onPick: (cell) => {
          if (cell.leaves.length === 1) return cordwood.go(cordwood.diffRowLink(a, b, rows[cell.leaves[0]]));
          state.cell = [cell.group, cell.layer, cell.kind].join("|");
          refilter();
          parts.filters.scrollIntoView({ block: "start" });
        },
      });
      return cordwood.replace(parts.matrix, cordwood.panel("Layers and kinds", matrix));
    }

    /** Return the table of the leaves. */
    function makeTable() {
      const made = cordwood.table({
        columns: cordwood.diffColumns(),
        rows: filtered(),
        label: "Leaves of both sides",
        tree: { keys: (row) => row.keys, href: (row) => cordwood.diffRowLink(a, b, row) },
        rowClass: (row) => `state-${row.state}`,
        initial: {
          search: state.search,
          sort: state.sort,
          descending: state.descending,
        },
        onChange: ({ search, sort, descending }) =>
          cordwood.setQuery({ search, sort: sort && `${descending ? "-" : ""}${sort}` }),
      });
      cordwood.replace(parts.table, made.element);
      return made;
    }

    /** Return the rows that the filters let through. */
    function filtered() {
      const cell = cellOf(result.matrices, state.cell);
      const picked = cell && new Set(cell.leaves);
      return rows.filter(
        (row) =>
          (!state.states.size || state.states.has(row.state)) && (!picked || picked.has(row.number)),
      );
    }

    /** Draw a button for each state that occurs, and one for the cell of the matrix. */
    function drawFilters() {
      const chips = cordwood
        .diffStates()
        .filter((name) => result.counts[name])
        .map((name) => chip(name));
      const cell = cellOf(result.matrices, state.cell);
      const words = cell && cell.label;
      cordwood.replace(
        parts.filters,
        chips,
        words &&
          element(
            "button",
            {
              type: "button",
              class: "chip pressed",
              "aria-label": `Show all cells, not only ${words}`,
              onclick: () => {
                state.cell = null;
                refilter();
              },
            },
            words,
            element("span", { "aria-hidden": "true" }, " ✕"),
          ),
      );
    }

    /** Return the button of a state. */
    function chip(name) {
      const pressed = state.states.has(name);
      return element(
        "button",
        {
          type: "button",
          class: `chip ${pressed ? "pressed" : ""}`,
          "aria-pressed": String(pressed),
          title: `Show ${pressed ? "all" : "only these"}: ${cordwood.stateMeaning(name)}`,
          onclick: () => {
            if (!state.states.delete(name)) state.states.add(name);
            refilter();
            parts.filters.querySelector(`[data-state="${name}"]`)?.focus();
          },
          "data-state": name,
        },
        cordwood.stateBadge(name, result.counts[name]),
      );
    }

    /** Follow a change of the filters. */
    function refilter() {
      cordwood.setQuery({ states: [...state.states].join(","), cell: state.cell });
      drawFilters();
      table.setRows(filtered());
    }
  };

  /** Return what the address says of the filters and of the table. */
  function stateOf(query) {
    const sort = query.get("sort");
    const names = (query.get("states") ?? "").split(",");
    return {
      states: new Set(names.filter((name) => cordwood.diffStates().includes(name))),
      cell: query.get("cell"),
      group: query.get("group"),
      search: query.get("search") ?? "",
      sort: sort && sort.replace(/^-/, ""),
      descending: sort?.startsWith("-") ?? false,
    };
  }

  /** Return the cell of the matrices that a name stands for, or null. */
  function cellOf(matrices, name) {
    for (const matrix of name ? matrices : []) {
      for (const [i, leaves] of matrix.leaves.entries()) {
        const layer = matrix.layers[Math.floor(i / matrix.kinds.length)];
        const kind = matrix.kinds[i % matrix.kinds.length];
        if ([matrix.group, layer, kind].join("|") !== name) continue;
        const words = [matrix.group, /^\d+$/.test(layer) ? `layer ${layer}` : layer, kind];
        return { leaves, label: words.map((word) => cordwood.printable(word, 40)).join(" · ") };
      }
    }
    return null;
  }

  /** Return the way to a difference from the first view. */
  function breadcrumbs(a, b) {
    if (cordwood.start.kind !== "run") return [];
    const label = `${cordwood.sourceName(a)} → ${cordwood.sourceName(b)}`;
    return [{ label: "Run", href: cordwood.link("run") }, { label }];
  }

  /** Return the address of a row: its difference, or the leaf if it is on one side only. */
  cordwood.diffRowLink = function (a, b, row) {
    if (row.i === null) return cordwood.link("leaf", [b, cordwood.leafPart(row.path, row.j)]);
    if (row.j === null) return cordwood.link("leaf", [a, cordwood.leafPart(row.path, row.i)]);
    return cordwood.link("diff-leaf", [a, b, cordwood.leafPart(row.path, row.number)]);
  };

  /** Return the heading: what is compared, with selectors if both are steps of a run. */
  cordwood.diffHead = function (a, b) {
    const { element } = cordwood;
    const swap = element(
      "a",
      { class: "button", href: cordwood.link("diff", [b, a]), title: "Compare in the other direction" },
      "⇄ Swap",
    );
    const sides = [
      ["a", a],
      ["b", b],
    ].map(([letter, source]) => {
      const path = cordwood.printable(cordwood.start.paths[source] ?? source, 300);
      const shown =
        cordwood.start.kind === "run"
          ? selector(letter, a, b)
          : element("a", { href: cordwood.link("checkpoint", [source]), title: path }, element("code", {}, path));
      return element("span", { class: "side" }, element("span", { class: "badge" }, letter), shown);
    });
    const arrow = element("span", { class: "muted", "aria-label": "to" }, "→");
    const canSwap = cordwood.hasResource(cordwood.resourceName("diff", b, a, "digests"));
    return element(
      "div",
      { class: "diff-head" },
      element("h1", {}, "Difference"),
      sides[0],
      arrow,
      sides[1],
      canSwap && swap,
    );
  };

  /** Return a selector of the step of one side. */
  function selector(letter, a, b) {
    const { element } = cordwood;
    const current = letter === "a" ? a : b;
    const steps = cordwood.start.sources.filter(
      (step) =>
        step === current ||
        cordwood.hasResource(
          cordwood.resourceName("diff", letter === "a" ? step : a, letter === "a" ? b : step, "digests"),
        ),
    );
    return element(
      "select",
      {
        "aria-label": `Step of side ${letter}`,
        onchange: (event) => {
          const step = event.target.value;
          cordwood.go(cordwood.link("diff", letter === "a" ? [step, b] : [a, step]));
        },
      },
      steps.map((step) =>
        element(
          "option",
          { value: step, selected: step === current },
          cordwood.printable(cordwood.sourceName(step), 60),
        ),
      ),
    );
  }

  /** Draw the verdict and its numbers. */
  function drawVerdict(place, result) {
    const { element, formatBytes } = cordwood;
    const [symbol, style] =
      result.equal === null ? ["?", ""] : result.equal ? ["=", "added"] : ["≠", "changed"];
    const facts = [];
    if (result.differing) {
      const total = formatBytes(result.size_bytes);
      facts.push(`${formatBytes(result.differing_bytes)} of ${total} in leaves that differ`);
    }
    if (result.equal_by_digest) {
      facts.push(`${cordwood.counted(result.equal_by_digest, "leaf", "leaves")} equal by digest`);
    }
    const how = result.complete || !result.read_bytes ? "" : ": values are from a sample";
    facts.push(
      result.read_bytes
        ? `${formatBytes(result.read_bytes)} read of each side${how}`
        : "no values read",
    );
    cordwood.replace(
      place,
      element(
        "p",
        { class: `verdict-line ${style}` },
        element("span", { class: "state-symbol", "aria-hidden": "true" }, symbol),
        element("strong", {}, sentence(result.verdict)),
      ),
      element("p", { class: "muted" }, facts.join(" · ")),
      result.matrices.slice(0, 1).map(cordwood.matrixFindings),
    );
  }

  /** Return a text with a capital letter first, and with separators in its numbers. */
  function sentence(text) {
    const numbered = text.replace(/\d{4,}/g, cordwood.formatCount);
    return numbered.charAt(0).toUpperCase() + numbered.slice(1);
  }

  /** Draw the containers that are of another kind. */
  function drawStructure(place, { structure, structure_count: count }) {
    const { element } = cordwood;
    if (!count) return cordwood.replace(place);
    const lines = structure.map((line) =>
      element("li", {}, element("code", {}, cordwood.printable(line, 300))),
    );
    if (count > lines.length) lines.push(element("li", {}, `and ${count - lines.length} more`));
    return cordwood.replace(
      place,
      cordwood.panel("Containers of another kind", element("ul", { class: "structure" }, lines)),
    );
  }

  /** Draw the facts about the optimizer. */
  function drawOptimizer(place, { optimizer }) {
    const { element, formatNumber } = cordwood;
    if (!optimizer.length) return cordwood.replace(place);
    const head = ["", "a", "b", "change", ""].map((label) => element("th", { scope: "col" }, label));
    const lines = optimizer.map((fact) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, cordwood.printable(fact.name, 80)),
        element("td", { class: "right" }, formatNumber(fact.a)),
        element("td", { class: "right" }, formatNumber(fact.b)),
        element("td", { class: "right" }, changeText(fact)),
        element("td", { class: "muted" }, cordwood.printable(fact.text, 300)),
      ),
    );
    const table = element(
      "table",
      { class: "optimizer" },
      element("thead", {}, element("tr", {}, head)),
      element("tbody", {}, lines),
    );
    return cordwood.replace(
      place,
      cordwood.panel("Update and optimizer", element("div", { class: "scrolls" }, table)),
    );
  }

  /** Return the change of a fact: a difference of counts, or a relative L2 norm. */
  function changeText(fact) {
    if (fact.change === null) return "";
    if (fact.name !== "steps") return cordwood.formatNumber(fact.change);
    return `${fact.change > 0 ? "+" : ""}${cordwood.formatCount(fact.change)}`;
  }

  /** Return a note that says why an export does not show all values. */
  function leftOut(result) {
    const what = result.read === "digests" ? "the comparison by digests" : "a sample of the values";
    const command = cordwood.element("code", {}, cordwood.printable(cordwood.start.command, 400));
    const words = `This file holds ${what} only. To compare all values, run: `;
    return cordwood.element("p", { class: "muted" }, words, command);
  }
})(globalThis.cordwood);
