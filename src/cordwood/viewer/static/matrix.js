"use strict";
// The matrix of layers and kinds: which part of a model changed, and how much.
(function (cordwood) {
  const GROUPS = {
    params: "parameters",
    mu: "first moments (mu)",
    nu: "second moments (nu)",
    trace: "momentum (trace)",
  };
  // The marks of cells, with what they mean.
  const MARKS = {
    nan: ["NaN", "NaN, or new infinite elements"],
    removed: ["−", "removed"],
    added: ["+", "added"],
    reshaped: ["⊞", "another shape"],
    changed: ["≠", "differs by digest; values not compared"],
    unread: ["?", "not compared"],
    renamed: ["→", "renamed, with equal bytes"],
    equal: ["=", "frozen: nothing changed"],
  };
  const ROWS_OF_FULL_HEIGHT = 40;
  const LABELS_IN_FINDINGS = 8;

  /**
   * Return the heat map of a group of leaves, with a selector if there are several groups.
   * matrices: as the resource `diff` has them.
   * onPick({group, layer, kind, leaves}): a cell was clicked; `leaves` are numbers of rows.
   * group: the group that is shown first; onGroup(group) follows the selector.
   * findings: false leaves out the sentences about what stands out.
   */
  cordwood.layerMatrix = function (options) {
    const { element } = cordwood;
    const { matrices, onPick = null, group = null, onGroup = null, findings = true, label } = options;
    const place = element("div", {});
    const names = matrices.map((matrix) => matrix.group);

    /** Draw the matrix of a group. */
    function show(name) {
      const matrix = matrices[Math.max(0, names.indexOf(name))];
      cordwood.replace(
        place,
        findings && cordwood.matrixFindings(matrix),
        chart(matrix, onPick, label),
        legend(matrix),
      );
    }

    const selector =
      matrices.length > 1 &&
      element(
        "select",
        {
          "aria-label": "Group of leaves",
          onchange: (event) => {
            show(event.target.value);
            onGroup?.(event.target.value);
          },
        },
        names.map((name) =>
          element(
            "option",
            { value: name, selected: name === group },
            cordwood.printable(GROUPS[name] ?? name, 60),
          ),
        ),
      );
    show(group);
    return element("div", { class: "layer-matrix" }, selector, place);
  };

  /** Return the heat map of one matrix; its colours follow the logarithm of the values. */
  function chart(matrix, onPick, label) {
    const { layers, kinds, states } = matrix;
    const values = matrix.values.map((value, i) => {
      if (states[i] === "nan") return NaN;
      const number = cordwood.toNumber(value);
      return states[i] === "equal" || Number.isNaN(number) ? null : Math.log10(number);
    });
    return cordwood.charts.heatMap({
      rows: layers.length,
      columns: kinds.length,
      values: values.map((value) => (value === -Infinity ? null : value)),
      marks: states.map((state, i) => mark(state, values[i])),
      rowLabels: layers,
      columnLabels: kinds,
      label: label ?? "Relative L2 of the change, by layer and kind",
      format: (value) => cordwood.formatNumber(10 ** cordwood.toNumber(value)),
      height:
        layers.length > ROWS_OF_FULL_HEIGHT
          ? Math.max(22 * ROWS_OF_FULL_HEIGHT, 13 * layers.length)
          : null,
      place: (row, column) => describe(matrix, row, column),
      onPick: onPick && ((row, column) => pick(matrix, row, column, onPick)),
    });
  }

  /** Return the mark of a cell; a change whose size is known needs none. */
  function mark(state, value) {
    if (state === null || (state === "changed" && value !== null)) return "";
    return MARKS[state]?.[0] ?? "?";
  }

  /** Return the place of a cell in words, for the tooltip. */
  function describe(matrix, row, column) {
    const i = row * matrix.kinds.length + column;
    const count = matrix.leaves[i].length;
    const name = matrix.layers[row];
    const layer = isNumber(name) ? `layer ${name}` : name;
    const leaves = count ? cordwood.counted(count, "leaf", "leaves") : "";
    return [layer, matrix.kinds[column], leaves].map((text) => cordwood.printable(text, 60));
  }

  /** Tell the caller which leaves belong to a cell. */
  function pick(matrix, row, column, onPick) {
    const leaves = matrix.leaves[row * matrix.kinds.length + column];
    if (!leaves.length) return;
    onPick({ group: matrix.group, layer: matrix.layers[row], kind: matrix.kinds[column], leaves });
  }

  /** Return what stands out, in words: layers with NaNs, and frozen ones beside others that move. */
  cordwood.matrixFindings = function (matrix) {
    const { element } = cordwood;
    const broken = [];
    const frozen = [];
    matrix.layers.forEach((layer, row) => {
      const start = row * matrix.kinds.length;
      const states = matrix.states.slice(start, start + matrix.kinds.length).filter(Boolean);
      if (states.includes("nan")) broken.push(layer);
      else if (states.every((state) => state === "equal")) frozen.push(layer);
    });
    const lines = [];
    if (broken.length) {
      lines.push(
        element(
          "p",
          { class: "finding damaged" },
          element("strong", {}, "NaN or new infinite elements: "),
          listed(broken),
        ),
      );
    }
    if (frozen.length && frozen.length < matrix.layers.length) {
      lines.push(
        element("p", { class: "finding" }, element("strong", {}, "Frozen: "), listed(frozen)),
      );
    }
    return lines;
  };

  /** Return names of layers in a line: `layers 0 to 7, 12 and 3 more`. */
  function listed(layers) {
    const ranges = [];
    for (const layer of layers) {
      const last = ranges.at(-1);
      if (last && isNumber(layer) && Number(layer) === Number(last.stop) + 1) last.stop = layer;
      else ranges.push({ start: layer, stop: layer });
    }
    const texts = ranges.slice(0, LABELS_IN_FINDINGS).map(({ start, stop }) => {
      const first = cordwood.printable(start, 40);
      return start === stop ? first : `${first} to ${cordwood.printable(stop, 40)}`;
    });
    const rest = ranges.length - texts.length;
    const noun = !layers.every(isNumber) ? "" : layers.length === 1 ? "layer " : "layers ";
    return `${noun}${texts.join(", ")}${rest ? ` and ${rest} more` : ""}`;
  }

  /** Return true if the name of a layer is a number. */
  function isNumber(layer) {
    return /^\d+$/.test(layer);
  }

  /** Return the marks that occur, and what they mean. */
  function legend(matrix) {
    const { element } = cordwood;
    const measured = matrix.values.some((value) => value !== null && cordwood.toNumber(value) > 0);
    const present = Object.keys(MARKS).filter(
      (state) =>
        matrix.states.includes(state) && state !== "nan" && !(state === "changed" && measured),
    );
    return element(
      "div",
      { class: "legend" },
      present.map((state) =>
        element("span", { class: "mark-meaning" }, element("kbd", {}, MARKS[state][0]), ` ${MARKS[state][1]}`),
      ),
    );
  }
})(globalThis.cordwood);
