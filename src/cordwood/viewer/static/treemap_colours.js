"use strict";
// What the colours of a treemap mean: the type, the layer or the sharding of a leaf.
(function (cordwood) {
  const COLOURS = 8;
  const LAYER = /(?:^|[^a-z])(?:layers?|blocks?|h|stages?|decoder|encoder)[_.-]?(\d+)$/i;

  /** Return the number of the layer that a leaf belongs to, or -1. */
  cordwood.layerOf = function (keys) {
    for (const key of keys) {
      if (/^\d{1,6}$/.test(key)) return Number(key);
      const match = key.length < 100 && LAYER.exec(key);
      if (match) return Number(match[1]);
    }
    return -1;
  };

  /**
   * Return the ways to colour a checkpoint: `[{name, label, colourOf(row), nameOf(row), legend}]`.
   * `legend` is a list of `{name, colour(), bytes}`, or `{low, high}` for a scale.
   */
  cordwood.colourings = function (rows, shardings) {
    const ways = [categories("type", "Type", rows, (row) => row.dtype)];
    let most = -1;
    for (const row of rows) {
      row.layer = cordwood.layerOf(row.keys);
      if (row.layer > most) most = row.layer;
    }
    if (most > 0) ways.push(layers(most));
    if (rows.some((row) => row.sharding >= 0)) {
      const nameOf = (row) => (row.sharding < 0 ? "not recorded" : shardings[row.sharding]);
      ways.push(categories("sharding", "Sharding", rows, nameOf));
    }
    return ways;
  };

  /** Return a colouring by a name; the names with the most bytes have a colour of their own. */
  function categories(name, label, rows, nameOf) {
    const bytes = new Map();
    for (const row of rows) bytes.set(nameOf(row), (bytes.get(nameOf(row)) ?? 0) + row.size_bytes);
    const sorted = [...bytes].filter(([, size]) => size > 0).sort((x, y) => y[1] - x[1]);
    const numberOf = new Map(sorted.map(([text], i) => [text, Math.min(i, COLOURS - 1)]));
    const colour = (i) => cordwood.palette().chart[i];
    const legend = sorted.slice(0, COLOURS).map(([text, size], i) => ({
      name: i === COLOURS - 1 && sorted.length > COLOURS ? "others" : text,
      number: i,
      bytes: size,
    }));
    if (sorted.length > COLOURS) {
      legend[COLOURS - 1].bytes = sorted.slice(COLOURS - 1).reduce((sum, [, size]) => sum + size, 0);
    }
    return {
      name,
      label,
      nameOf,
      numberOf: (row) => numberOf.get(nameOf(row)) ?? COLOURS - 1,
      colourOf: (row) => colour(numberOf.get(nameOf(row)) ?? COLOURS - 1),
      legend,
      colour,
    };
  }

  /** Return a colouring by layer, from the first to the last on a scale. */
  function layers(most) {
    const nameOf = (row) => (row.layer < 0 ? "no layer" : `layer ${row.layer}`);
    const colourOf = (row) => {
      if (row.layer < 0) return cordwood.palette().chart[COLOURS - 1];
      const { chart } = cordwood.palette();
      const share = row.layer / most;
      return share < 0.5
        ? cordwood.mix(chart[2], chart[0], share * 2)
        : cordwood.mix(chart[0], chart[3], share * 2 - 1);
    };
    const ends = [0, 0.5, 1].map((share) => ({ layer: share * most }));
    return {
      name: "layer",
      label: "Layer",
      nameOf,
      colourOf,
      scale: { low: "layer 0", high: `layer ${most}`, ends },
    };
  }
})(globalThis.cordwood);
