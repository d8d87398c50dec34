"use strict";
// The chart of a matrix of numbers as colours, and of one row of such a matrix.
(function (cordwood) {
  const LABEL_FONT = "11px system-ui, sans-serif";

  /**
   * Return a heat map.
   *
   * values: row by row; null leaves a cell empty. NaN and infinite cells are hatched.
   * marks: row by row, a short text in a cell such as "NaN" or "=", or "".
   * emptyText: what the legend says of empty cells.
   * scale: "sequential" from the least to the greatest value, or "diverging" around zero.
   * onPick(row, column): follows a click and Enter. The arrow keys move the cursor.
   */
  cordwood.charts.heatMap = function (options) {
    const { element } = cordwood;
    const { rows, columns, onPick = null, label = "Heat map", height = null } = options;
    const format = options.format ?? cordwood.formatNumber;
    const values = options.values.map((value) => (value === null ? null : cordwood.toNumber(value)));
    const marks = options.marks ?? [];
    const rowLabels = (options.rowLabels ?? []).map((text) => cordwood.printable(text, 40));
    const columnLabels = (options.columnLabels ?? []).map((text) => cordwood.printable(text, 40));
    const diverging = options.scale === "diverging";
    const [least, greatest] = limits(values, diverging);
    let cell = { width: 0, height: 0, left: 0, top: 0 };
    let picked = null;
    let width = 0;

    const readout = element("span", { class: "readout", "aria-live": "polite" });
    const canvas = element("canvas", {
      tabindex: 0,
      role: "img",
      class: onPick ? "heat-map picks" : "heat-map",
      "aria-label": summary(),
      onpointermove: (event) => {
        const place = placeOf(event);
        pick(place);
        cordwood.showTooltip(place && linesOf(place), event.clientX, event.clientY);
      },
      onpointerleave: () => {
        pick(null);
        cordwood.showTooltip(null);
      },
      onblur: () => pick(null),
      onclick: (event) => {
        const place = placeOf(event);
        if (place) onPick?.(place.row, place.column);
      },
      onkeydown: onKey,
    });
    const area = element("div", { class: "chart-area" }, canvas);
    const box = element(
      "figure",
      { class: "chart" },
      options.label ? element("figcaption", { class: "chart-head" }, element("span", {}, label)) : null,
      area,
      legend(),
      readout,
    );

    /** Return the chart in words. */
    function summary() {
      const unusual = values.filter((value) => value !== null && !Number.isFinite(value)).length;
      const range = Number.isFinite(least)
        ? `, from ${format(diverging ? Math.min(...finite(values)) : least)} to ${format(greatest)}`
        : "";
      const strange = unusual ? `; ${cordwood.counted(unusual, "cell")} not finite` : "";
      return `${label}: ${rows} × ${columns} cells${range}${strange}.`;
    }

    /** Return the explanation of the colours. */
    function legend() {
      const bar = element("span", { class: `scale ${diverging ? "diverging" : ""}` });
      const unusual = values.some((value) => value !== null && !Number.isFinite(value));
      const empty = options.emptyText && values.includes(null) && options.emptyText;
      return element(
        "div",
        { class: "legend" },
        least === greatest && !diverging && `everywhere ${format(least)}`,
        least < greatest &&
          element(
            "span",
            { class: "legend-entry" },
            format(diverging ? -greatest : least),
            bar,
            format(greatest),
          ),
        unusual &&
          element("span", { class: "legend-entry" }, element("span", { class: "hatch" }), "NaN or infinite"),
        empty &&
          element("span", { class: "legend-entry" }, element("span", { class: "swatch empty" }), empty),
      );
    }

    /** Compute the sizes of cells and labels for a width. */
    function layout(context) {
      context.font = LABEL_FONT;
      const widest = (texts) => Math.max(0, ...texts.map((text) => context.measureText(text).width));
      const left = rowLabels.length ? Math.min(width * 0.35, widest(rowLabels) + 10) : 0;
      const room = Math.max(columns, width - left);
      const most = columnLabels.length ? 72 : rows === 1 ? Infinity : 28;
      const cellWidth = Math.min(most, room / columns);
      const slanted = columnLabels.length > 0 && widest(columnLabels) + 6 > cellWidth;
      const top = !columnLabels.length ? 0 : slanted ? Math.min(90, widest(columnLabels) + 8) : 18;
      const cellHeight = height
        ? height / rows
        : rowLabels.length
          ? 22
          : Math.max(2, Math.min(28, cellWidth, 264 / rows));
      cell = { width: cellWidth, height: cellHeight, left, top, slanted };
    }

    /** Draw everything. */
    function draw() {
      if (!width) return;
      layout(canvas.getContext("2d"));
      const full = cell.left + cell.width * columns;
      const context = cordwood.sizedContext(canvas, full, cell.top + cell.height * rows);
      const colours = cordwood.palette();
      context.font = LABEL_FONT;
      context.textBaseline = "middle";
      for (let i = 0; i < rows * columns; i++) drawCell(context, colours, i);
      drawLabels(context, colours);
      if (picked) {
        context.strokeStyle = cordwood.css(colours.text);
        context.lineWidth = 2;
        const { x, y } = cornerOf(picked.row, picked.column);
        context.strokeRect(x + 1, y + 1, Math.max(1, cell.width - 2), Math.max(1, cell.height - 2));
      }
    }

    /** Return the corner of a cell. */
    function cornerOf(row, column) {
      return { x: cell.left + column * cell.width, y: cell.top + row * cell.height };
    }

    /** Draw a cell: its colour, hatches if it is not finite, and its mark if there is room. */
    function drawCell(context, colours, i) {
      const value = values[i];
      const mark = marks[i] ?? "";
      if (value === null && !mark) return;
      const corner = cornerOf(Math.floor(i / columns), i % columns);
      const [x, y] = [Math.round(corner.x), Math.round(corner.y)];
      const gap = cell.width > 6 && cell.height > 6 ? 1 : 0;
      const size = [
        Math.round(corner.x + cell.width) - x - gap,
        Math.round(corner.y + cell.height) - y - gap,
      ];
      let colour = cordwood.mix(colours.panel, colours.line, 0.7);
      if (value !== null && Number.isFinite(value)) {
        const span = greatest - least;
        const share = diverging ? value / (greatest || 1) : span ? (value - least) / span : 0.5;
        colour = cordwood.scaleColour(share, diverging);
      }
      context.fillStyle = cordwood.css(colour);
      context.fillRect(x, y, ...size);
      if (value !== null && !Number.isFinite(value)) hatch(context, colours, x, y, ...size);
      if (mark && context.measureText(mark).width + 2 < size[0] && size[1] > 11) {
        context.fillStyle = Number.isFinite(value) && value !== null
          ? cordwood.inkOn(colour)
          : cordwood.css(colours.text);
        context.textAlign = "center";
        context.fillText(mark, x + size[0] / 2, y + size[1] / 2 + 0.5);
      }
    }

    /** Draw the labels of rows and columns; of many rows only those that have room. */
    function drawLabels(context, colours) {
      context.fillStyle = cordwood.css(colours.muted);
      context.textAlign = "right";
      const every = Math.max(1, Math.ceil(13 / cell.height));
      rowLabels.forEach((text, row) => {
        if (row % every) return;
        const { y } = cornerOf(row, 0);
        context.fillText(text, cell.left - 6, y + cell.height / 2, cell.left - 8);
      });
      columnLabels.forEach((text, column) => {
        const { x } = cornerOf(0, column);
        context.save();
        context.translate(x + cell.width / 2, cell.top - 8);
        context.textAlign = cell.slanted ? "left" : "center";
        if (cell.slanted) context.rotate(-Math.PI / 3);
        context.fillText(text, 0, 0, cell.slanted ? 84 : undefined);
        context.restore();
      });
    }

    /** Return the place of the cell under the pointer, or null. */
    function placeOf(event) {
      const { left, top } = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - left - cell.left) / cell.width);
      const row = Math.floor((event.clientY - top - cell.top) / cell.height);
      const inside = column >= 0 && column < columns && row >= 0 && row < rows;
      return inside ? { row, column } : null;
    }

    /** Return what the tooltip says of a cell. */
    function linesOf({ row, column }) {
      const i = row * columns + column;
      const place = options.place
        ? options.place(row, column)
        : [rowLabels[row] ?? (rows > 1 ? `row ${row}` : ""), columnLabels[column] ?? `column ${column}`];
      const head = [place].flat().filter(Boolean).join(" · ");
      const value = values[i] === null ? "" : format(options.values[i]);
      return [head, [value, marks[i]].filter(Boolean).join("  ") || "nothing here"];
    }

    /** Move the cursor to a cell; null removes it. */
    function pick(place) {
      if (place?.row === picked?.row && place?.column === picked?.column) return;
      picked = place;
      draw();
      if (!place) cordwood.replace(readout);
    }

    /** Follow a key. */
    function onKey(event) {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const place = picked ?? { row: 0, column: 0 };
      if (event.key === "Enter") onPick?.(place.row, place.column);
      else if (moves[event.key]) {
        const [down, right] = picked ? moves[event.key] : [0, 0];
        const row = Math.max(0, Math.min(rows - 1, place.row + down));
        const column = Math.max(0, Math.min(columns - 1, place.column + right));
        pick({ row, column });
        cordwood.replace(readout, linesOf({ row, column }).join(": "));
      } else return;
      event.preventDefault();
      event.stopPropagation();
    }

    cordwood.onWidth(
      area,
      (value) => {
        width = value;
        draw();
      },
      draw,
    );
    return box;
  };

  /** Return a strip: one row of a heat map, for values along an axis. */
  cordwood.charts.strip = function ({ values, label, format, scale = "sequential", place }) {
    return cordwood.charts.heatMap({
      rows: 1,
      columns: values.length,
      values,
      label,
      format,
      scale,
      height: 28,
      place: place ?? ((_, column) => `part ${column + 1} of ${values.length}`),
    });
  };

  /** Return the finite ones of values. */
  function finite(values) {
    return values.filter((value) => value !== null && Number.isFinite(value));
  }

  /** Return the least and the greatest finite value; around zero for a diverging scale. */
  function limits(values, diverging) {
    let least = Infinity;
    let greatest = -Infinity;
    for (const value of finite(values)) {
      least = Math.min(least, value);
      greatest = Math.max(greatest, value);
    }
    if (!diverging || least > greatest) return [least, greatest];
    const most = Math.max(Math.abs(least), Math.abs(greatest));
    return [-most, most];
  }

  /** Hatch a rectangle, a sign that needs no colour; fill one that is too small for that. */
  function hatch(context, colours, x, y, width, height) {
    if (width < 8 || height < 8) {
      context.fillStyle = cordwood.css(colours.damaged);
      context.fillRect(x, y, Math.max(1, width), Math.max(1, height));
      return;
    }
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = cordwood.css(colours.damaged, 0.75);
    context.lineWidth = 1.2;
    context.beginPath();
    for (let offset = -height; offset < width; offset += 5) {
      context.moveTo(x + offset, y + height);
      context.lineTo(x + offset + height, y);
    }
    context.stroke();
    context.restore();
  }
})(globalThis.cordwood);
