"use strict";
// The layout of a treemap: rectangles whose area is the size of a node. Pure functions.
(function (cordwood) {
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
        const { inner, label } = mergedNode(node);
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

  /** Return the node that a container with a single child stands for. */
  function mergedNode(node) {
    let label = node.key;
    let inner = node;
    while (inner.children?.length === 1) {
      inner = inner.children[0];
      label += `/${inner.key}`;
    }
    return { inner, label };
  }

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
})(globalThis.cordwood);
