"use strict";
// The treemap: every leaf as a rectangle whose area is its size, grouped by containers.
(function (cordwood) {
  const LABEL_FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const HEAD_FONT = `600 ${LABEL_FONT}`;
  const LETTER = 6.3; // pixels, about
  const ITEMS_AT_ONCE = 200;
  const FILL = 0.42; // the share of a colour in a rectangle: text on it stays readable
  const SMALLEST_TARGET = 10; // pixels: a click on a smaller leaf zooms into its container

  /**
   * Return a treemap: `{element, ready}`.
   *
   * root: the tree of `cordwood.treeOf`; rows need `dtype`, `shape` and `path`.
   * colourings: of `cordwood.colourings`.
   * href(row): where a leaf leads to.
   * initial: `{zoom, colour}`, the id of a container and the name of a colouring; onChange(state).
   */
  cordwood.treemap = function ({ root, colourings, href, initial, onChange }) {
    const { element } = cordwood;
    let coloured = colourings.find((way) => way.name === initial.colour) ?? colourings[0];
    let zoom = initial.zoom ? cordwood.containerOf(root, initial.zoom) : root;
    let highlighted = null; // the number of a category
    let items = [];
    let cursor = -1;
    let drawings = 0;
    let width = 0;
    let canvas = element("canvas", { "aria-hidden": "true" });

    const outline = element("div", { class: "treemap-cursor", hidden: true });
    const area = element(
      "div",
      {
        class: "treemap-area",
        tabindex: 0,
        role: "application",
        "aria-roledescription": "treemap",
        "aria-label":
          `Treemap by bytes: ${cordwood.counted(root.count, "leaf", "leaves")}, ` +
          `${cordwood.formatBytes(root.size)}. Arrow keys move, Enter opens, Escape zooms out. ` +
          "The table below holds the same leaves.",
        onpointermove: (event) => {
          const i = itemAt(event);
          point(i);
          cordwood.showTooltip(i < 0 ? null : linesOf(items[i]), event.clientX, event.clientY);
        },
        onpointerleave: () => {
          point(-1);
          cordwood.showTooltip(null);
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
    const path = element("div", { class: "treemap-path" });
    const legend = element("div", { class: "legend" });
    const readout = element("span", { class: "off-screen", "aria-live": "polite" });
    const buttons = colourings.map((way) =>
      element(
        "button",
        { type: "button", "aria-pressed": String(way === coloured), onclick: () => colourBy(way) },
        way.label,
      ),
    );
    const box = element(
      "div",
      { class: "treemap" },
      element(
        "div",
        { class: "panel-head" },
        element("h2", {}, "Bytes"),
        path,
        colourings.length > 1 &&
          element(
            "span",
            { class: "treemap-by" },
            element("span", { class: "muted small" }, "Colour by"),
            element("span", { class: "segments", role: "group", "aria-label": "Colour by" }, buttons),
          ),
      ),
      area,
      legend,
      readout,
    );

    /** Colour by another property. */
    function colourBy(way) {
      coloured = way;
      highlighted = null;
      buttons.forEach((button, i) => {
        button.setAttribute("aria-pressed", String(colourings[i] === way));
      });
      drawLegend();
      paint();
      onChange?.({ zoom: zoom.id, colour: way === colourings[0] ? null : way.name });
    }

    /** Show a container alone. */
    function zoomTo(node) {
      zoom = node;
      cursor = -1;
      outline.hidden = true;
      cordwood.showTooltip(null);
      drawPath();
      layout();
      onChange?.({ zoom: zoom.id, colour: coloured === colourings[0] ? null : coloured.name });
      cordwood.replace(readout, describe(zoom));
    }

    /** Draw the containers around the one that is shown, as buttons. */
    function drawPath() {
      const nodes = [];
      for (let node = zoom; node; node = node.parent) nodes.unshift(node);
      cordwood.replace(
        path,
        nodes.length > 1 &&
          nodes.map((node, i) => {
            const text = i ? cordwood.printable(node.key, 40) : "all";
            if (i === nodes.length - 1) return element("span", { class: "last" }, text);
            return element("button", { type: "button", onclick: () => zoomTo(node) }, text);
          }),
      );
    }

    /** Draw the meaning of the colours. A click on a category lets the others fade. */
    function drawLegend() {
      const { scale } = coloured;
      if (scale) {
        const bar = element("span", { class: "scale" });
        const stops = scale.ends.map((end) => cordwood.css(coloured.colourOf(end)));
        bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
        const none = element("span", { class: "swatch" });
        none.style.background = cordwood.css(coloured.colourOf({ layer: -1 }));
        cordwood.replace(legend, scale.low, bar, scale.high, none, "no layer");
        return;
      }
      const entries = coloured.legend.map(({ name, number, bytes }) => {
        const swatch = element("span", { class: "swatch" });
        swatch.style.background = cordwood.css(coloured.colour(number));
        return element(
          "button",
          {
            type: "button",
            "aria-pressed": String(highlighted === number),
            onclick: () => {
              highlighted = highlighted === number ? null : number;
              drawLegend();
              paint();
            },
          },
          swatch,
          cordwood.printable(name, 80),
          element("span", { class: "muted" }, cordwood.formatBytes(bytes)),
        );
      });
      cordwood.replace(legend, entries);
    }

    /** Compute the rectangles for the width, and draw them. */
    async function layout() {
      if (!width) return;
      const mine = ++drawings;
      const height = heightFor(width);
      const laidOut = await cordwood.inTasks(cordwood.layoutTreemap(zoom, width, height));
      if (mine !== drawings) return;
      items = laidOut;
      await paint();
    }

    /** Draw all rectangles on a new canvas, in small tasks, and show it when it is complete. */
    async function paint() {
      if (!width) return;
      const mine = ++drawings;
      const next = element("canvas", { "aria-hidden": "true" });
      const context = cordwood.sizedContext(next, width, heightFor(width));
      const done = await cordwood.inTasks(
        (function* () {
          for (let i = 0; i < items.length; i++) {
            if (i % ITEMS_AT_ONCE === 0) {
              yield;
              if (mine !== drawings) return false;
            }
            drawItem(context, items[i]);
          }
          return true;
        })(),
      );
      if (!done || mine !== drawings) return;
      canvas.replaceWith(next);
      canvas = next;
      box.dataset.items = String(items.length);
    }

    /** Draw a rectangle. */
    function drawItem(context, item) {
      const { text, muted, panel, line, background } = cordwood.palette();
      const x = Math.round(item.x);
      const y = Math.round(item.y);
      const right = Math.round(item.x + item.width);
      const bottom = Math.round(item.y + item.height);
      const gap = right - x > 4 && bottom - y > 4 ? 1 : 0;
      const [wide, high] = [Math.max(1, right - x - gap), Math.max(1, bottom - y - gap)];
      if (item.kind === "group") {
        context.fillStyle = cordwood.css(cordwood.mix(item.depth % 2 ? panel : background, line, 0.6));
        context.fillRect(x, y, wide, high);
        if (item.head) {
          context.font = HEAD_FONT;
          context.fillStyle = cordwood.css(text);
          const size = wide > 150 ? cordwood.formatBytes(item.node.size) : "";
          write(context, item.label, x + 5, y + 12.5, wide - 10 - size.length * LETTER);
          if (size) {
            context.font = LABEL_FONT;
            context.fillStyle = cordwood.css(muted);
            context.textAlign = "right";
            context.fillText(size, x + wide - 5, y + 12.5);
            context.textAlign = "left";
          }
        }
        return;
      }
      const row = rowOf(item.node);
      const fades = highlighted !== null && coloured.numberOf?.(row) !== highlighted;
      context.fillStyle = cordwood.css(cordwood.mix(panel, coloured.colourOf(row), fades ? 0.1 : FILL));
      context.fillRect(x, y, wide, high);
      if (fades || wide < 34 || high < 15) return;
      context.fillStyle = cordwood.css(text);
      context.font = LABEL_FONT;
      write(context, item.label, x + 5, y + 12.5, wide - 8);
      if (high < 30 || wide < 56) return;
      write(context, `${row.dtype}  ${cordwood.formatBytes(item.node.size)}`, x + 5, y + 26, wide - 8);
    }

    /** Write a text, cut to a width. */
    function write(context, text, x, y, room) {
      const letters = Math.floor(room / LETTER);
      if (letters < 2) return;
      const shown = cordwood.printable(text, 60);
      const cut = shown.length <= letters ? shown : `${shown.slice(0, letters - 1)}…`;
      context.fillText(cut, x, y, room); // no wider than the room, in any font
    }

    /** Return the position of the innermost item under the pointer, or -1. */
    function itemAt(event) {
      const bounds = area.getBoundingClientRect();
      const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
      for (let i = items.length - 1; i >= 0; i--) {
        const item = items[i];
        if (x >= item.x && x < item.x + item.width && y >= item.y && y < item.y + item.height) return i;
      }
      return -1;
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
      if (item.node.row && isLarge) cordwood.go(href(item.node.row));
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
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const item = items[cursor];
      if (event.key === "Enter" && item) open(item, true);
      else if ((event.key === "Escape" || event.key === "Backspace") && zoom !== root) zoomTo(outside());
      else if (moves[event.key]) {
        const next = item ? neighbour(item, moves[event.key]) : items.findIndex((each) => !each.depth);
        if (next >= 0) {
          point(next);
          cordwood.replace(readout, linesOf(items[next]).join(", "));
        }
      } else return;
      event.preventDefault();
      event.stopPropagation();
    }

    /** Return the container around the one that is shown; those with one child are skipped. */
    function outside() {
      let node = zoom.parent;
      while (node.parent && node.children.length === 1) node = node.parent;
      return node;
    }

    /** Return the position of the nearest item of the outermost level in a direction, or -1. */
    function neighbour(item, [right, down]) {
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
      const share = `${cordwood.formatBytes(node.size)}, ${cordwood.formatShare(node.size / root.size)}`;
      if (!node.row) return [describe(node), share];
      const { dtype, shape, path } = node.row;
      const type = `${dtype} ${cordwood.formatShape(shape)}`;
      const extra = coloured.name === "type" ? null : coloured.nameOf(node.row);
      return [cordwood.printable(path, 160), type, share, extra && cordwood.printable(extra, 160)].filter(Boolean);
    }

    /** Return a container as text. */
    function describe(node) {
      const name = node.first ? `${node.id}/…` : node.id || "all";
      return `${cordwood.printable(name, 160)}: ${cordwood.counted(node.count, "leaf", "leaves")}`;
    }

    drawPath();
    drawLegend();
    cordwood.onWidth(
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
})(globalThis.cordwood);
