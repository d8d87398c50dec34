// The matrix of layers and kinds: which part of a model changed, and how much.
const {
  append, counted, element, errorBox, fetchResource, formatNumber, go, hasResource, inExport, link, panel,
  printable, replace, resourceName, rowsOf, task, toNumber,
} = cordwood;
const GROUPS = {
  params: "parameters",
  mu: "first moments (mu)",
  nu: "second moments (nu)",
  trace: "momentum (trace)",
};
// What the marks of cells mean.
const MEANINGS = {
  nan: "NaN, or new infinite elements",
  removed: "removed",
  added: "added",
  reshaped: "another shape",
  changed: "differs by digest; values not compared",
  unread: "not compared",
  renamed: "renamed, with equal bytes",
  equal: "frozen: nothing changed",
};
const ROWS_OF_FULL_HEIGHT = 40;
const LABELS_IN_FINDINGS = 8;

/**
 * Return the heat map of a group of leaves, with a selector if there are several groups.
 * matrices: as the resource `diff` has them.
 * onPick({name, group, leaves}): a cell was clicked; `leaves` are numbers of rows.
 * group: the group that is shown first; onGroup(group) follows the selector.
 * findings: false leaves out the sentences about what stands out.
 */
cordwood.layerMatrix = function (options) {
  const { matrices, onPick = null, group = null, onGroup = null, findings = true, label } = options;
  const place = element("div");
  const names = matrices.map((matrix) => matrix.group);

  /** Draw the matrix of a group. */
  function show(name) {
    const matrix = matrices[Math.max(0, names.indexOf(name))];
    replace(place, findings && cordwood.matrixFindings(matrix), chart(matrix, onPick, label), legend(matrix));
  }

  const choices = names.map((name) => [name, GROUPS[name] ?? name]);
  const selector =
    names.length > 1 &&
    cordwood.select("Group of leaves", choices, group, (name) => {
      show(name);
      onGroup?.(name);
    });
  show(group);
  return element("div.layer-matrix", selector, place);
};

/** Return the heat map of one matrix; its colours follow the logarithm of the values. */
function chart(matrix, onPick, label) {
  const { layers, kinds, states } = matrix;
  const values = matrix.values.map((value, i) => {
    if (states[i] === "nan") return NaN;
    const number = toNumber(value);
    return states[i] === "equal" || Number.isNaN(number) ? null : Math.log10(number);
  });
  return cordwood.charts.heatMap({
    rows: layers.length,
    columns: kinds.length,
    values: values.map((value) => (value === -Infinity ? null : value)),
    // A change whose size is known needs no mark.
    marks: states.map((state, i) =>
      state === null || (state === "changed" && values[i] !== null) ? "" : markOf(state),
    ),
    rowLabels: layers,
    columnLabels: kinds,
    label: label ?? "Relative L2 of the change, by layer and kind",
    format: (value) => formatNumber(10 ** toNumber(value)),
    height:
      layers.length > ROWS_OF_FULL_HEIGHT ? Math.max(22 * ROWS_OF_FULL_HEIGHT, 13 * layers.length) : null,
    place: (row, column) => describe(matrix, row, column),
    onPick:
      onPick &&
      ((row, column) => {
        const cell = cordwood.matrixCell(matrix, row * kinds.length + column);
        if (cell.leaves.length) onPick(cell);
      }),
  });
}

/** Return the mark of a state. */
function markOf(state) {
  return state === "nan" ? "NaN" : cordwood.leafStates[state].symbol;
}

/** Return the place of a cell in words, for the tooltip. */
function describe(matrix, row, column) {
  const { words, leaves } = cordwood.matrixCell(matrix, row * matrix.kinds.length + column);
  const texts = [...words.slice(1), leaves.length && counted(leaves.length, "leaf", "leaves")];
  return texts.filter(Boolean).map((text) => printable(text, 60)).join(" · ");
}

/** Return a cell of a matrix: `{name, group, words, leaves}`. */
cordwood.matrixCell = function ({ group, layers, kinds, leaves }, i) {
  const [layer, kind] = [layers[Math.floor(i / kinds.length)], kinds[i % kinds.length]];
  const words = [group, isNumber(layer) ? `layer ${layer}` : layer, kind];
  return { name: [group, layer, kind].join("|"), group, words, leaves: leaves[i] };
};

/** Return what stands out, in words: layers with NaNs, and frozen ones beside others that move. */
cordwood.matrixFindings = function (matrix) {
  const broken = [];
  const frozen = [];
  matrix.layers.forEach((layer, row) => {
    const start = row * matrix.kinds.length;
    const states = matrix.states.slice(start, start + matrix.kinds.length).filter(Boolean);
    if (states.includes("nan")) broken.push(layer);
    else if (states.every((state) => state === "equal")) frozen.push(layer);
  });
  const isNews = frozen.length > 0 && frozen.length < matrix.layers.length;
  return [
    broken.length > 0 &&
      element("p.finding.damaged", element("strong", "NaN or new infinite elements: "), listed(broken)),
    isNews && element("p.finding", element("strong", "Frozen: "), listed(frozen)),
  ];
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
    const first = printable(start, 40);
    return start === stop ? first : `${first} to ${printable(stop, 40)}`;
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
  const measured = matrix.values.some((value) => value !== null && toNumber(value) > 0);
  const present = Object.keys(MEANINGS).filter(
    (state) => matrix.states.includes(state) && state !== "nan" && !(state === "changed" && measured),
  );
  const meaning = (state) =>
    element("span.mark-meaning", element("kbd", markOf(state)), ` ${MEANINGS[state]}`);
  return element("div.legend", present.map(meaning));
}

const MOST_SIDE_BY_SIDE = 3; // matrices; of more, a selector shows one

/**
 * Return the panel: `{element, show(index)}`.
 * Digests are compared at once, which reads no arrays; a sample of the values when the user asks
 * for it, and from then on for every step that is shown. All values are offered where the sample
 * is not all.
 */
cordwood.runMatrix = function ({ steps }) {
  const area = element("div");
  const tools = element("div.table-tools");
  const heading = element("p.muted");
  let group = null; // the matrix on screen: params, mu ...
  let asked = inExport ? "all" : null; // what the user wants to be compared
  let pending = null;
  const { viewSignal } = cordwood;

  /** Show the matrix of a step and the step before it. */
  async function show(index) {
    pending?.abort(new DOMException("Another step was chosen.", "AbortError"));
    pending = new AbortController();
    const signal = AbortSignal.any([pending.signal, viewSignal]);
    const step = steps[index];
    const before = steps[cordwood.stepBefore(steps, index)];
    replace(tools);
    if (step.state !== "whole" || !before) {
      const why = step.state === "whole" ? "there is no step before it" : `it is ${step.state}`;
      replace(heading, `Step ${printable(step.name, 40)} is not compared: ${why}.`);
      replace(area);
      return;
    }
    const [a, b] = [before.name, step.name];
    try {
      const name = resourceName("diff", a, b, "digests");
      if (hasResource(name)) {
        const diff = await fetchResource(name, { signal });
        if (signal.aborted) return;
        draw(diff, a, b);
        if (diff.equal) return;
      } else if (inExport) {
        replace(heading, `From step ${a} to ${b}: this file does not hold the difference.`);
        replace(area);
      }
      // Offer to compare values, or do it if the user has asked for it before.
      const held = cordwood.heldResource(asked === "all" ? ["all", "sample"] : ["sample"], "diff", a, b);
      if (held !== null) offer(held, asked !== null, a, b, signal);
    } catch (error) {
      if (signal.aborted) return;
      replace(heading, `From step ${printable(a, 40)} to ${printable(b, 40)}`);
      replace(area, errorBox(error));
    }
  }

  /** Offer a comparison of values. */
  function offer(name, start, a, b, signal) {
    const isAll = name.endsWith("/all");
    const run = async (onProgress, cancelled) => {
      const both = AbortSignal.any([signal, cancelled]);
      const diff = await fetchResource(name, { onProgress, signal: both });
      if (signal.aborted) return;
      asked = isAll ? "all" : "sample";
      draw(diff, a, b);
      const all = resourceName("diff", a, b, "all");
      if (!diff.complete && !isAll && hasResource(all)) offer(all, false, a, b, signal);
    };
    const title = isAll ? "Compare all values" : "Compare values";
    append(tools, task({ title, start, run }));
  }

  /** Draw a difference. */
  function draw(diff, a, b) {
    replace(
      heading,
      `From step ${printable(a, 40)} to ${printable(b, 40)}: ${printable(diff.verdict, 300)} `,
      diff.read_bytes && !diff.complete ? "(values are from a sample) " : "",
      element("a", { href: link("diff", [a, b]) }, "Open the difference"),
    );
    if (!diff.matrices.length) {
      const words = "The key paths of this run name no layers: open the difference to see its leaves.";
      replace(area, element("p.muted", words));
      return;
    }
    const { matrices } = diff;
    const isWide = matrices.length <= MOST_SIDE_BY_SIDE;
    const charts = (isWide ? matrices.map((each) => [each]) : [matrices]).map((some) =>
      cordwood.layerMatrix({
        matrices: some,
        group,
        onGroup: (name) => (group = name),
        onPick: (cell) => openCell(diff, a, b, cell),
        label: isWide ? nameOf(some[0].group) : undefined,
      }),
    );
    replace(area, element("div.matrices", charts), meaning(diff));
  }

  /** Return what the colours mean, if there are any. */
  function meaning(diff) {
    const hasColours = diff.matrices.some((each) => each.values.some((value) => toNumber(value) > 0));
    const words =
      "The colour is the L2 norm of the change, relative to the norm before. A click opens the leaves of a cell.";
    return hasColours && element("p.muted.small", words);
  }

  /** Open the leaf of a cell; of several leaves, the difference with only these. */
  function openCell(diff, a, b, { group, name, leaves }) {
    if (leaves.length > 1) return go(link("diff", [a, b], { group, cell: name }));
    go(cordwood.diffRowLink(a, b, rowsOf(diff.rows)[leaves[0]]));
  }

  return { element: panel("Change since the step before", heading, tools, area), show };
};

/** Return the name of a group of leaves for a reader. */
function nameOf(group) {
  return group === "params" ? "parameters" : printable(group, 60);
}
