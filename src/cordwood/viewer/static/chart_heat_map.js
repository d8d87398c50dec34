// The chart of a matrix of numbers as colours, and of one row of such a matrix.
const {
  counted, css, element, formatNumber, inkOn, limits, mix, onWidth, palette, printable, scaleColour,
  sizedContext, toNumber,
} = cordwood;
const LABEL_FONT = "11px system-ui, sans-serif";

/**
 * Return a heat map.
 *
 * values: row by row; null leaves a cell empty. NaN and infinite cells are hatched.
 * marks: row by row, a short text in a cell such as "NaN" or "=", or "".
 * emptyText: what the legend says of empty cells. place(row, column): where a cell is, in words.
 * onPick(row, column): follows a click and Enter. The arrow keys move the cursor.
 */
cordwood.charts.heatMap = function (options) {
  const { rows, columns, onPick = null, label, height = null, marks = [] } = options;
  const format = options.format ?? formatNumber;
  const values = options.values.map((value) => (value === null ? null : toNumber(value)));
  const rowLabels = (options.rowLabels ?? []).map((text) => printable(text, 40));
  const columnLabels = (options.columnLabels ?? []).map((text) => printable(text, 40));
  const [least, greatest] = limits(values);
  const unusual = values.filter((value) => value !== null && !Number.isFinite(value)).length;
  let cell = { width: 0, height: 0, left: 0, top: 0 };
  let picked = null;
  let width = 0;

  const canvas = element("canvas.heat-map", {
    tabindex: 0,
    role: "img",
    "aria-label": summary(),
    onpointermove: (event) => {
      const place = placeOf(event);
      pick(place);
      frame.show(place && linesOf(place), event);
    },
    onpointerleave: () => pick(null),
    onblur: () => pick(null),
    onclick: (event) => {
      const place = placeOf(event);
      if (place) onPick?.(place.row, place.column);
    },
    onkeydown: onKey,
  });
  canvas.classList.toggle("picks", onPick !== null);
  const area = element("div.chart-area", canvas);
  const frame = cordwood.chartFrame(label, null, area, legend());

  /** Return the chart in words. */
  function summary() {
    const range = Number.isFinite(least) ? `, from ${format(least)} to ${format(greatest)}` : "";
    const strange = unusual ? `; ${counted(unusual, "cell")} not finite` : "";
    return `${label}: ${rows} × ${columns} cells${range}${strange}.`;
  }

  /** Return the explanation of the colours. */
  function legend() {
    const entry = (...parts) => element("span.legend-entry", parts);
    const hasEmpty = options.emptyText && values.includes(null);
    return element(
      "div.legend",
      least === greatest && `everywhere ${format(least)}`,
      least < greatest && entry(format(least), element("span.scale"), format(greatest)),
      unusual > 0 && entry(element("span.hatch"), "NaN or infinite"),
      hasEmpty && entry(element("span.swatch.empty"), options.emptyText),
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
  function draw(pixels = width) {
    width = pixels;
    if (!width) return;
    layout(canvas.getContext("2d"));
    const full = cell.left + cell.width * columns;
    const context = sizedContext(canvas, full, cell.top + cell.height * rows);
    const colours = palette();
    context.font = LABEL_FONT;
    context.textBaseline = "middle";
    for (let i = 0; i < rows * columns; i++) drawCell(context, colours, i);
    drawLabels(context, colours);
    if (picked) {
      context.strokeStyle = css(colours.text);
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
    const size = [Math.round(corner.x + cell.width) - x - gap, Math.round(corner.y + cell.height) - y - gap];
    let colour = mix(colours.panel, colours.line, 0.7);
    if (value !== null && Number.isFinite(value)) {
      const span = greatest - least;
      colour = scaleColour(span ? (value - least) / span : 0.5);
    }
    context.fillStyle = css(colour);
    context.fillRect(x, y, ...size);
    if (value !== null && !Number.isFinite(value)) hatch(context, colours, x, y, ...size);
    if (mark && context.measureText(mark).width + 2 < size[0] && size[1] > 11) {
      context.fillStyle = Number.isFinite(value) && value !== null ? inkOn(colour) : css(colours.text);
      context.textAlign = "center";
      context.fillText(mark, x + size[0] / 2, y + size[1] / 2 + 0.5);
    }
  }

  /** Draw the labels of rows and columns; of many rows only those that have room. */
  function drawLabels(context, colours) {
    context.fillStyle = css(colours.muted);
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
    const value = values[i] === null ? "" : format(options.values[i]);
    return [options.place(row, column), [value, marks[i]].filter(Boolean).join("  ") || "nothing here"];
  }

  /** Move the cursor to a cell; null removes it. */
  function pick(place) {
    if (!place) frame.show(null);
    if (place?.row === picked?.row && place?.column === picked?.column) return;
    picked = place;
    draw();
  }

  /** Follow a key. */
  function onKey(event) {
    const move = (down, right) => () => {
      const [from, by] = picked ? [picked, [down, right]] : [{ row: 0, column: 0 }, [0, 0]];
      const row = Math.max(0, Math.min(rows - 1, from.row + by[0]));
      const column = Math.max(0, Math.min(columns - 1, from.column + by[1]));
      pick({ row, column });
      frame.show(linesOf(picked));
    };
    cordwood.followKey(event, {
      Enter: () => onPick?.(picked?.row ?? 0, picked?.column ?? 0),
      ArrowUp: move(-1, 0),
      ArrowDown: move(1, 0),
      ArrowLeft: move(0, -1),
      ArrowRight: move(0, 1),
    });
  }

  onWidth(area, draw, () => draw());
  return frame.element;
};

/** Return a strip: one row of a heat map, for values along an axis. */
cordwood.charts.strip = function (options) {
  return cordwood.charts.heatMap({ rows: 1, columns: options.values.length, height: 28, ...options });
};

/** Hatch a rectangle, a sign that needs no colour; fill one that is too small for that. */
function hatch(context, colours, x, y, width, height) {
  if (width < 8 || height < 8) {
    context.fillStyle = css(colours.damaged);
    context.fillRect(x, y, Math.max(1, width), Math.max(1, height));
    return;
  }
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = css(colours.damaged, 0.75);
  context.lineWidth = 1.2;
  context.beginPath();
  for (let offset = -height; offset < width; offset += 5) {
    context.moveTo(x + offset, y + height);
    context.lineTo(x + offset + height, y);
  }
  context.stroke();
  context.restore();
}
