// A table that draws only the rows in sight: search, sort, and fold by key path.
const {
  columnWidths, headCell, keyCell, append, containersToOpen, counted, element, formatBytes, formatCount, go,
  inTasks, replace, tableEntries,
} = cordwood;
const ROWS_OUT_OF_SIGHT = 8; // drawn above and below, so that scrolling shows no gap
const NARROW = 640; // pixels: all columns with `wide` are left out below
let tables = 0;

/**
 * Return a table: `{element, ready, state, setRows, focusSearch, focus}`.
 *
 * columns: `[{name, label, align, width, wide, title, value(row), cell(row), sum, group(node)}]`.
 *   `value` returns what is sorted by (leave it out: not sortable), `cell` a node or text, `group`
 *   the same for a container; `sum` shows the bytes of a container; `width` is in rem, and
 *   `narrow` on narrow screens; columns with `wide` are left out, the last one first,
 *   where there is no room for them.
 * rows: objects; `row.path` is searched, and copied by the key "c".
 * tree: `{keys(row), href(row), size(row)}`, or null for a plain table. The first column of a tree
 *   is drawn by the table: its last key as a link, or the whole path in a sorted list; its `cell`,
 *   if it has one, is shown behind it.
 * onOpen(row): follows Enter and a click; the default goes to `tree.href(row)`.
 * nouns: of one row and of several, for the count.
 * initial: `{sort, descending, search, open, scroll}`; onChange(state) follows every change of it.
 */
cordwood.table = function (options) {
  const { columns, tree = null, rowHeight = 30, search = tree !== null } = options;
  const nouns = options.nouns ?? ["leaf", "leaves"];
  const name = `table-${++tables}`;
  const state = {
    sort: null,
    descending: false,
    search: "",
    open: null, // ids of the open containers; null: as many as fit
    scroll: 0,
    ...options.initial,
  };
  let rows = options.rows;
  let root = null; // the tree of all rows
  let entries = []; // what is shown: {node or row, label, depth}
  let searchOpen = null; // open containers while a search is shown
  let active = -1;
  let updates = 0;
  let shownColumns = columns;
  const drawn = new Map(); // elements of rows by position

  const input = cordwood.searchInput("Search key paths", "  ( / )", state.search, setSearch, {
    onkeydown: (event) =>
      cordwood.followKey(event, {
        Escape: () => input.value !== "" && setSearch(""),
        ArrowDown: () => scroller.focus(),
        Enter: () => scroller.focus(),
      }),
  });
  const count = element("span.table-count", { role: "status" });
  const fold = (opened, label) => element("button.button.quiet", { onclick: () => openAll(opened) }, label);
  const folding = element("span.button-group", fold(false, "Fold all"), fold(true, "Unfold all"));
  const head = element("div.table-head", { role: "row", "aria-rowindex": 1 });
  const body = element("div.table-body", { role: "rowgroup" });
  const scroller = element(
    "div.table-scroller",
    {
      role: tree ? "treegrid" : "grid",
      tabindex: 0,
      "aria-label": options.label ?? "Leaves",
      "aria-readonly": "true",
      onscroll: () => {
        state.scroll = scroller.scrollTop;
        requestDraw();
      },
      onkeydown: onKey,
      onfocus: () => {
        if (active < 0 && entries.length) setActive(firstInSight(), false);
      },
    },
    element("div.table-top", { role: "rowgroup" }, head),
    body,
  );
  const box = element(
    "div.table",
    search && element("div.table-tools", input, count, tree && folding),
    scroller,
  );
  const observer = new ResizeObserver(() => {
    chooseColumns();
    draw(true);
  });
  observer.observe(scroller);
  cordwood.viewSignal?.addEventListener("abort", () => observer.disconnect());

  /** Choose the columns that the width has room for, and draw the head. */
  function chooseColumns() {
    const width = scroller.clientWidth || 1000;
    const room = width / Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
    const widthsOf = () => columnWidths(shownColumns, width < NARROW);
    shownColumns = width < NARROW ? columns.filter((column) => !column.wide) : columns;
    while (widthsOf().least > room && shownColumns.some((column) => column.wide)) {
      const last = shownColumns.findLastIndex((column) => column.wide);
      shownColumns = shownColumns.toSpliced(last, 1);
    }
    const { template, least } = widthsOf();
    scroller.style.setProperty("--columns", template);
    scroller.style.setProperty("--least", `${least}rem`);
    scroller.style.setProperty("--row-height", `${rowHeight}px`);
    scroller.setAttribute("aria-colcount", shownColumns.length);
    drawHead();
  }

  /** Draw the names of the columns; those with values sort. */
  function drawHead() {
    const cells = shownColumns.map((column) => headCell(column, state, sortBy));
    const focused = [...head.children].indexOf(document.activeElement?.parentElement);
    replace(head, cells);
    if (focused >= 0) head.children[focused]?.querySelector("button")?.focus();
  }

  /** Sort by a column: first one way, then the other, then not at all. */
  function sortBy(column) {
    const sample = rows.length ? column.value(rows[0]) : "";
    const first = typeof sample !== "string";
    if (state.sort !== column.name) Object.assign(state, { sort: column.name, descending: first });
    else if (state.descending === first) state.descending = !first;
    else Object.assign(state, { sort: null, descending: false });
    drawHead();
    update({ changed: true });
  }

  /** Show the rows whose key path has all words of a text. */
  function setSearch(text) {
    if (input.value !== text) input.value = text;
    state.search = text;
    searchOpen = null;
    update({ changed: true });
  }

  /** Compute what is shown, in small tasks; a newer call overtakes this one. */
  async function update({ changed = false, keepScroll = false } = {}) {
    const mine = ++updates;
    const result = await inTasks(tableEntries({ rows, columns, tree, state, root, searchOpen }));
    if (mine !== updates) return;
    ({ entries, root, searchOpen } = result);
    if (result.open) state.open = result.open;
    active = Math.min(active, entries.length - 1);
    if (!keepScroll) {
      active = -1;
      scroller.scrollTop = 0;
    }
    finishUpdate(result.matches, changed);
  }

  /** Show the entries that were computed. */
  function finishUpdate(matches, changed) {
    const all = rows.length;
    replace(
      count,
      matches === all ? counted(all, ...nouns) : `${formatCount(matches)} of ${counted(all, ...nouns)}`,
    );
    folding.hidden = !tree || state.sort !== null || entries.length === matches;
    scroller.setAttribute("aria-rowcount", entries.length + 1);
    body.style.height = `${Math.max(entries.length, 1) * rowHeight}px`;
    body.classList.toggle("empty", entries.length === 0);
    draw(true);
    if (changed) options.onChange?.(state);
  }

  /** Fold or unfold a container. */
  function toggle(node, opened) {
    const open = state.search.trim() ? searchOpen : state.open;
    if (opened) open.add(node.id);
    else open.delete(node.id);
    update({ changed: true, keepScroll: true });
  }

  /** Fold or unfold all containers. */
  function openAll(opened) {
    const open = opened && root ? containersToOpen(root, Infinity) : new Set();
    if (state.search.trim()) searchOpen = open;
    else state.open = open;
    update({ changed: true });
  }

  let requested = false;

  /** Draw before the next frame. */
  function requestDraw() {
    if (requested) return;
    requested = true;
    requestAnimationFrame(() => {
      requested = false;
      draw(false);
    });
  }

  /** Return the position of the first row in sight. */
  function firstInSight() {
    return Math.min(entries.length - 1, Math.ceil(scroller.scrollTop / rowHeight));
  }

  /** Draw the rows in sight; `anew` also those that are drawn already. */
  function draw(anew) {
    const height = scroller.clientHeight || 600;
    const first = Math.max(0, Math.floor(scroller.scrollTop / rowHeight) - ROWS_OUT_OF_SIGHT);
    const last = Math.min(entries.length, first + height / rowHeight + 2 * ROWS_OUT_OF_SIGHT);
    for (const [i, row] of drawn) {
      if (anew || i < first || i >= last) {
        row.remove();
        drawn.delete(i);
      }
    }
    const added = document.createDocumentFragment();
    for (let i = first; i < last; i++) {
      if (drawn.has(i)) continue;
      const row = drawRow(i);
      drawn.set(i, row);
      added.append(row);
    }
    body.append(added);
    markActive();
  }

  /** Return the element of a row. */
  function drawRow(i) {
    const entry = entries[i];
    const { node, row, depth } = entry;
    const line = element("div", {
      role: "row",
      id: `${name}-${i}`,
      class: `row ${row ? (options.rowClass?.(row) ?? "") : "container"}`,
      "aria-rowindex": i + 2,
      "aria-level": tree ? depth + 1 : null,
      "aria-expanded": node?.children ? String(entry.open) : null,
      onclick: (event) => {
        setActive(i, false);
        if (event.target.closest("a, button")) return;
        if (row === null) toggle(node, !entry.open);
        else if (!String(getSelection())) openRow(row);
      },
    });
    line.style.transform = `translateY(${i * rowHeight}px)`;
    shownColumns.forEach((column, position) => {
      const cell = element("div", {
        role: position === 0 ? "rowheader" : "gridcell",
        class: `cell ${column.align ?? ""}`,
      });
      if (tree && position === 0) {
        append(cell, keyCell(entry, column, tree, state.search));
      } else if (row) append(cell, column.cell(row));
      else if (column.group) append(cell, column.group(node));
      else if (column.sum) append(cell, formatBytes(node.size));
      line.append(cell);
    });
    return line;
  }

  /** Open a row. */
  function openRow(row) {
    if (options.onOpen) options.onOpen(row);
    else if (tree?.href) go(tree.href(row));
  }

  /** Make a row the active one, and scroll it into sight. */
  function setActive(i, scrolls = true) {
    if (!entries.length) return;
    active = Math.max(0, Math.min(entries.length - 1, i));
    if (scrolls) {
      const top = active * rowHeight;
      const room = scroller.clientHeight - head.offsetHeight - rowHeight;
      if (top < scroller.scrollTop) scroller.scrollTop = top;
      else if (top > scroller.scrollTop + room) scroller.scrollTop = top - room;
      draw(false);
    }
    markActive();
  }

  /** Mark the active row for the eye and for screen readers. */
  function markActive() {
    for (const [i, row] of drawn) row.classList.toggle("active", i === active);
    if (drawn.has(active)) scroller.setAttribute("aria-activedescendant", `${name}-${active}`);
    else scroller.removeAttribute("aria-activedescendant");
  }

  /** Follow a key. */
  function onKey(event) {
    if (event.target !== scroller) return;
    const page = Math.max(1, Math.floor(scroller.clientHeight / rowHeight) - 2);
    const entry = entries[active];
    const moveBy = (by) => () => setActive(active + by);
    cordwood.followKey(event, {
      ArrowDown: moveBy(1),
      ArrowUp: moveBy(-1),
      j: moveBy(1),
      k: moveBy(-1),
      PageDown: moveBy(page),
      PageUp: moveBy(-page),
      Home: () => setActive(0),
      End: () => setActive(entries.length - 1),
      Enter: () => {
        if (entry?.row) openRow(entry.row);
        else if (entry) toggle(entry.node, !entry.open);
      },
      ArrowRight: () => {
        if (entry?.node?.children && !entry.open) toggle(entry.node, true);
        else if (entry?.open) setActive(active + 1);
      },
      ArrowLeft: () => {
        if (entry?.open) toggle(entry.node, false);
        else if (entry?.depth) setActive(parentOf(active));
      },
      c: () => {
        if (entry?.row) cordwood.copy(entry.row.path);
      },
    });
  }

  /** Return the position of the container that holds a row. */
  function parentOf(i) {
    const { depth } = entries[i];
    let parent = i;
    while (parent > 0 && entries[parent].depth >= depth) parent--;
    return parent;
  }

  chooseColumns();
  const ready = update({ keepScroll: true }).then(() => {
    if (state.scroll) scroller.scrollTop = state.scroll;
  });
  return {
    element: box,
    ready,
    state,
    setRows(newRows) {
      rows = newRows;
      root = null;
      return update({ keepScroll: true });
    },
    focusSearch() {
      input.focus();
      input.select();
    },
    focus() {
      scroller.focus();
    },
  };
};
