// The layout of a treemap, rectangles whose area is the size of a node, and its colours.
const { mergedNode, mix, palette } = cordwood;
const HEAD_HEIGHT = 17;
const LEAST_SIDE = 5; // pixels: smaller containers are one block
const LEAST_AREA = 1.5; // square pixels: smaller nodes are one block together
const NODES_AT_ONCE = 256;

/**
 * Lay out the children of a container in a rectangle, and theirs in them.
 * Items are `{node, x, y, width, height, depth, kind, label}`; kind is "leaf", "group" (a
 * container with its head) or "block" (nodes too small to be drawn one by one). A container
 * stands before what it contains.
 */
cordwood.layoutTreemap = function* (root, width, height) {
  const items = [];
  const queue = [{ node: root, x: 0, y: 0, width, height, depth: 0 }];
  let laidOut = 0;
  while (queue.length) {
    const area = queue.pop();
    const placed = [];
    yield* squarify(area, placed);
    for (const { node, x, y, width, height } of placed) {
      if (++laidOut % NODES_AT_ONCE === 0) yield;
      const [inner, label] = mergedNode(node);
      const item = { node: inner, x, y, width, height, depth: area.depth, kind: "leaf", label };
      items.push(item);
      if (!inner.children) continue;
      if (Math.min(width, height) < LEAST_SIDE) {
        item.kind = "block";
        continue;
      }
      item.kind = "group";
      item.head = width > 56 && height > 46 ? HEAD_HEIGHT : 0;
      const border = Math.min(width, height) > 14 ? 2 : 0.5;
      queue.push({
        node: inner,
        x: x + border,
        y: y + (item.head || border),
        width: width - 2 * border,
        height: height - (item.head || border) - border,
        depth: area.depth + 1,
      });
    }
  }
  return items;
};

/**
 * Place the children of an area: rows of rectangles that are nearly squares.
 * Source: Bruls, Huizing, van Wijk, "Squarified treemaps", 2000.
 */
function* squarify(area, placed) {
  let { x, y, width, height } = area;
  const nodes = area.node.children.filter((node) => node.size > 0);
  nodes.sort((first, second) => second.size - first.size);
  const scale = (width * height) / area.node.size;
  let i = 0;
  while (i < nodes.length && width > 0 && height > 0) {
    if (nodes[i].size * scale < LEAST_AREA) {
      placed.push({ node: restOf(area.node, nodes, i), x, y, width, height });
      return;
    }
    const side = Math.min(width, height);
    let sum = 0;
    let worst = Infinity;
    let stop = i;
    while (stop < nodes.length) {
      const next = sum + nodes[stop].size * scale;
      const shape = worstShape(nodes[i].size * scale, nodes[stop].size * scale, next, side);
      if (shape > worst) break;
      [sum, worst] = [next, shape];
      stop++;
    }
    const isWide = width >= height;
    const thickness = Math.min(sum / side, isWide ? width : height);
    let offset = 0;
    for (; i < stop; i++) {
      const length = (nodes[i].size * scale) / thickness;
      placed.push(
        isWide
          ? { node: nodes[i], x, y: y + offset, width: thickness, height: length }
          : { node: nodes[i], x: x + offset, y, width: length, height: thickness },
      );
      offset += length;
      if (placed.length % NODES_AT_ONCE === 0) yield;
    }
    if (isWide) [x, width] = [x + thickness, width - thickness];
    else [y, height] = [y + thickness, height - thickness];
  }
}

/** Return the worst ratio of sides in a row of rectangles from the largest to the least. */
function worstShape(largest, least, sum, side) {
  const square = (side * side) / (sum * sum);
  return Math.max(square * largest, 1 / (square * least));
}

/** Return a node for all the nodes from a position on: each is too small to be seen. */
function restOf(parent, nodes, first) {
  if (first === nodes.length - 1) return nodes[first];
  const rest = nodes.slice(first);
  return {
    key: `${rest.length} small ones`,
    id: parent.id,
    parent,
    children: null,
    row: null,
    size: rest.reduce((sum, node) => sum + node.size, 0),
    count: rest.reduce((sum, node) => sum + node.count, 0),
    first: rest[0],
  };
}

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
  const last = COLOURS - 1;
  const numbers = new Map(sorted.map(([text], i) => [text, Math.min(i, last)]));
  const numberOf = (row) => numbers.get(nameOf(row)) ?? last;
  const colour = (i) => palette().chart[i];
  const legend = sorted.slice(0, COLOURS).map(([text, bytes], number) => ({ name: text, number, bytes }));
  if (sorted.length > COLOURS) {
    const others = sorted.slice(last).reduce((sum, [, size]) => sum + size, 0);
    legend[last] = { name: "others", number: last, bytes: others };
  }
  return { name, label, nameOf, numberOf, colourOf: (row) => colour(numberOf(row)), legend, colour };
}

/** Return a colouring by layer, from the first to the last on a scale. */
function layers(most) {
  const nameOf = (row) => (row.layer < 0 ? "no layer" : `layer ${row.layer}`);
  const colourOf = (row) => {
    const { chart } = palette();
    if (row.layer < 0) return chart[COLOURS - 1];
    const share = row.layer / most;
    return share < 0.5 ? mix(chart[2], chart[0], share * 2) : mix(chart[0], chart[3], share * 2 - 1);
  };
  const ends = [0, 0.5, 1].map((share) => ({ layer: share * most }));
  const scale = { low: "layer 0", high: `layer ${most}`, ends };
  return { name: "layer", label: "Layer", nameOf, colourOf, scale };
}
