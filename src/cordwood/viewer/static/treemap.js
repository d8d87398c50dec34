// The treemap: every leaf as a rectangle whose area is its size, grouped by containers.
const {
  containerOf, counted, css, element, formatBytes, formatShape, formatShare, go, inTasks, layoutTreemap, mix,
  onWidth, palette, printable, replace, showTooltip, sizedContext,
} = cordwood;
const LABEL_FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const HEAD_FONT = `600 ${LABEL_FONT}`;
const LETTER = 6.3; // pixels, about
const ITEMS_AT_ONCE = 200;
const FILL = 0.42; // the share of a colour in a rectangle: text on it stays readable
const SMALLEST_TARGET = 10; // pixels: a click on a smaller leaf zooms into its container

/**
 * Return a treemap: `{element, ready}`.
 *
 * root: the tree of `treeOf`; rows need `dtype`, `shape` and `path`.
 * colourings: of `cordwood.colourings`.
 * href(row): where a leaf leads to.
 * initial: `{zoom, colour}`, the id of a container and the name of a colouring; onChange(state).
 */
cordwood.treemap = function ({ root, colourings, href, initial, onChange }) {
  let coloured = colourings.find((way) => way.name === initial.colour) ?? colourings[0];
  let zoom = initial.zoom ? containerOf(root, initial.zoom) : root;
  let highlighted = null; // the number of a category
  let items = [];
  let cursor = -1;
  let drawings = 0;
  let width = 0;
  let canvas = element("canvas", { "aria-hidden": "true" });

  const outline = element("div.treemap-cursor", { hidden: true });
  const area = element(
    "div.treemap-area",
    {
      tabindex: 0,
      role: "application",
      "aria-roledescription": "treemap",
      "aria-label":
        `Treemap by bytes: ${counted(root.count, "leaf", "leaves")}, ` +
        `${formatBytes(root.size)}. Arrow keys move, Enter opens, Escape zooms out. ` +
        "The table below holds the same leaves.",
      onpointermove: (event) => {
        const i = itemAt(event);
        point(i);
        showTooltip(i < 0 ? null : linesOf(items[i]), event.clientX, event.clientY);
      },
      onpointerleave: () => {
        point(-1);
        showTooltip(null);
      },
      onblur: () => point(-1),
      onclick: (event) => {
        const i = itemAt(event);
        if (i >= 0) open(items[i]);
      },
      onkeydown: onKey,
    },
    canvas,
    outline,
  );
  const path = element("div.treemap-path");
  const legend = element("div.legend");
  const readout = element("span.off-screen", { "aria-live": "polite" });
  const choices = colourings.map((way) => [way, way.label]);
  const by = colourings.length > 1 && cordwood.segments("Colour by", choices, coloured, colourBy);
  const box = element(
    "div.treemap",
    element(
      "div.panel-head",
      element("h2", "Bytes"),
      path,
      by && element("span.treemap-by", element("span.muted.small", "Colour by"), by),
    ),
    area,
    legend,
    readout,
  );

  /** Colour by another property. */
  function colourBy(way) {
    coloured = way;
    highlighted = null;
    drawLegend();
    paint();
    tellChange();
  }

  /** Tell the caller what is shown. */
  function tellChange() {
    onChange({ zoom: zoom.id, colour: coloured === colourings[0] ? null : coloured.name });
  }

  /** Show a container alone. */
  function zoomTo(node) {
    zoom = node;
    cursor = -1;
    outline.hidden = true;
    showTooltip(null);
    drawPath();
    layout();
    tellChange();
    replace(readout, describe(zoom));
  }

  /** Draw the containers around the one that is shown, as buttons. */
  function drawPath() {
    const nodes = [];
    for (let node = zoom; node; node = node.parent) nodes.unshift(node);
    replace(
      path,
      nodes.length > 1 &&
        nodes.map((node, i) => {
          const text = i ? printable(node.key, 40) : "all";
          if (i === nodes.length - 1) return element("span.last", text);
          return element("button", { onclick: () => zoomTo(node) }, text);
        }),
    );
  }

  /** Draw the meaning of the colours. A click on a category lets the others fade. */
  function drawLegend() {
    const { scale } = coloured;
    if (scale) {
      const stops = scale.ends.map((end) => css(coloured.colourOf(end)));
      const background = `linear-gradient(to right, ${stops.join(", ")})`;
      const gradient = element("span.scale", { style: { background } });
      const none = swatch(coloured.colourOf({ layer: -1 }));
      return replace(legend, scale.low, gradient, scale.high, none, "no layer");
    }
    const entries = coloured.legend.map(({ name, number, bytes }) => {
      const attributes = {
        "aria-pressed": String(highlighted === number),
        onclick: () => {
          highlighted = highlighted === number ? null : number;
          drawLegend();
          paint();
        },
      };
      const size = element("span.muted", formatBytes(bytes));
      return element("button", attributes, swatch(coloured.colour(number)), printable(name, 80), size);
    });
    replace(legend, entries);
  }

  /** Compute the rectangles for the width, and draw them. */
  async function layout() {
    if (!width) return;
    const mine = ++drawings;
    const laidOut = await inTasks(layoutTreemap(zoom, width, heightFor(width)));
    if (mine !== drawings) return;
    items = laidOut;
    await paint();
  }

  /** Draw all rectangles on a new canvas, in small tasks, and show it when it is complete. */
  async function paint() {
    if (!width) return;
    const mine = ++drawings;
    const next = element("canvas", { "aria-hidden": "true" });
    const context = sizedContext(next, width, heightFor(width));
    await inTasks(drawItems(context, mine));
    if (mine !== drawings) return;
    canvas.replaceWith(next);
    canvas = next;
    box.dataset.items = String(items.length);
  }

  /** Draw the rectangles, until a newer drawing begins. */
  function* drawItems(context, mine) {
    for (let i = 0; i < items.length; i++) {
      if (i % ITEMS_AT_ONCE === 0) yield;
      if (mine !== drawings) return;
      drawItem(context, items[i]);
    }
  }

  /** Draw a rectangle. */
  function drawItem(context, item) {
    const { text, muted, panel, line, background } = palette();
    const x = Math.round(item.x);
    const y = Math.round(item.y);
    const right = Math.round(item.x + item.width);
    const bottom = Math.round(item.y + item.height);
    const gap = right - x > 4 && bottom - y > 4 ? 1 : 0;
    const [wide, high] = [Math.max(1, right - x - gap), Math.max(1, bottom - y - gap)];
    if (item.kind === "group") {
      context.fillStyle = css(mix(item.depth % 2 ? panel : background, line, 0.6));
      context.fillRect(x, y, wide, high);
      if (item.head) {
        context.font = HEAD_FONT;
        context.fillStyle = css(text);
        const size = wide > 150 ? formatBytes(item.node.size) : "";
        write(context, item.label, x + 5, y + 12.5, wide - 10 - size.length * LETTER);
        if (size) {
          context.font = LABEL_FONT;
          context.fillStyle = css(muted);
          context.textAlign = "right";
          context.fillText(size, x + wide - 5, y + 12.5);
          context.textAlign = "left";
        }
      }
      return;
    }
    const row = rowOf(item.node);
    const fades = highlighted !== null && coloured.numberOf?.(row) !== highlighted;
    context.fillStyle = css(mix(panel, coloured.colourOf(row), fades ? 0.1 : FILL));
    context.fillRect(x, y, wide, high);
    if (fades || wide < 34 || high < 15) return;
    context.fillStyle = css(text);
    context.font = LABEL_FONT;
    write(context, item.label, x + 5, y + 12.5, wide - 8);
    if (high < 30 || wide < 56) return;
    write(context, `${row.dtype}  ${formatBytes(item.node.size)}`, x + 5, y + 26, wide - 8);
  }

  /** Write a text, cut to a width. */
  function write(context, text, x, y, room) {
    const letters = Math.floor(room / LETTER);
    if (letters < 2) return;
    const shown = printable(text, 60);
    const cut = shown.length <= letters ? shown : `${shown.slice(0, letters - 1)}…`;
    context.fillText(cut, x, y, room); // no wider than the room, in any font
  }

  /** Return the position of the innermost item under the pointer, or -1. */
  function itemAt(event) {
    const bounds = area.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    return items.findLastIndex(
      (item) => x >= item.x && x < item.x + item.width && y >= item.y && y < item.y + item.height,
    );
  }

  /** Outline an item; -1 outlines none. */
  function point(i) {
    if (i === cursor) return;
    cursor = i;
    outline.hidden = i < 0;
    if (i < 0) return;
    const { x, y, width, height } = items[i];
    Object.assign(outline.style, {
      left: `${Math.round(x)}px`,
      top: `${Math.round(y)}px`,
      width: `${Math.max(3, Math.round(width))}px`,
      height: `${Math.max(3, Math.round(height))}px`,
    });
  }

  /** Open a leaf, or zoom into a container; for a leaf too small to aim at, into its container. */
  function open(item, aimed = false) {
    const isLarge = aimed || Math.min(item.width, item.height) >= SMALLEST_TARGET;
    if (item.node.row && isLarge) go(href(item.node.row));
    else if (item.node.children && isLarge) zoomTo(item.node);
    else zoomTo(nextInside(item.node));
  }

  /** Return the container to zoom into on the way to a small node. */
  function nextInside(node) {
    let inner = node.parent ?? zoom;
    if (inner === zoom) return zoom;
    while (inner.parent && inner.parent !== zoom) inner = inner.parent;
    while (inner.children.length === 1 && inner.children[0].children) inner = inner.children[0];
    return inner;
  }

  /** Follow a key: the arrows move between the items of the outermost level. */
  function onKey(event) {
    const item = items[cursor];
    const move = (right, down) => () => {
      const next = item ? neighbour(item, right, down) : items.findIndex((each) => !each.depth);
      if (next < 0) return;
      point(next);
      replace(readout, linesOf(items[next]).join(", "));
    };
    const leave = () => zoom !== root && zoomTo(outside());
    cordwood.followKey(event, {
      Enter: () => item !== undefined && open(item, true),
      Escape: leave,
      Backspace: leave,
      ArrowLeft: move(-1, 0),
      ArrowRight: move(1, 0),
      ArrowUp: move(0, -1),
      ArrowDown: move(0, 1),
    });
  }

  /** Return the container around the one that is shown; those with one child are skipped. */
  function outside() {
    let node = zoom.parent;
    while (node.parent && node.children.length === 1) node = node.parent;
    return node;
  }

  /** Return the position of the nearest item of the outermost level in a direction, or -1. */
  function neighbour(item, right, down) {
    const middle = (each) => [each.x + each.width / 2, each.y + each.height / 2];
    const [x, y] = middle(item);
    let best = -1;
    let least = Infinity;
    items.forEach((each, i) => {
      if (each.depth || each === item) return;
      const [dx, dy] = [middle(each)[0] - x, middle(each)[1] - y];
      const along = right * dx + down * dy;
      const across = Math.abs(right ? dy : dx);
      if (along > 1 && along + 2 * across < least) [best, least] = [i, along + 2 * across];
    });
    return best;
  }

  /** Return what the tooltip says of an item. */
  function linesOf(item) {
    const { node } = item;
    const share = `${formatBytes(node.size)}, ${formatShare(node.size / root.size)}`;
    if (!node.row) return [describe(node), share];
    const { dtype, shape, path } = node.row;
    const type = `${dtype} ${formatShape(shape)}`;
    const extra = coloured.name === "type" ? null : coloured.nameOf(node.row);
    return [printable(path, 160), type, share, extra && printable(extra, 160)].filter(Boolean);
  }

  /** Return a container as text. */
  function describe(node) {
    const name = node.first ? `${node.id}/…` : node.id || "all";
    return `${printable(name, 160)}: ${counted(node.count, "leaf", "leaves")}`;
  }

  drawPath();
  drawLegend();
  onWidth(
    area,
    (value) => {
      width = value;
      area.style.height = `${heightFor(width)}px`;
      layout();
    },
    () => {
      drawLegend();
      paint();
    },
  );
  return { element: box, zoomOut: () => zoom !== root && (zoomTo(outside()), true) };
};

/** Return a sample of a colour, for the legend. */
function swatch(colour) {
  return element("span.swatch", { style: { background: css(colour) } });
}

/** Return a height for a width. */
function heightFor(width) {
  return Math.round(Math.max(260, Math.min(400, width * 0.34)));
}

/** Return a row that stands for a node: its own, or that of its first leaf. */
function rowOf(node) {
  let inner = node;
  while (!inner.row) inner = inner.first ?? inner.children[0];
  return inner.row;
}
