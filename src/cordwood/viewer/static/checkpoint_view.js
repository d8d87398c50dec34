"use strict";
// The view of a checkpoint: one line, the treemap, the table of leaves, metadata and files.
(function (cordwood) {
  /** Draw the view of a checkpoint. */
  cordwood.views.checkpoint = async function (root, route) {
    const { element, resourceName, link, leafPart } = cordwood;
    const [source] = route.parts;
    const checkpoint = await cordwood.fetchResource(resourceName("checkpoint", source), {
      signal: route.signal,
    });
    const { shardings } = checkpoint;
    const rows = cordwood.rowsOf(checkpoint.leaves);
    const table = cordwood.table({
      columns: columnsOf(shardings),
      rows,
      tree: {
        keys: (row) => row.keys,
        href: (row) => link("leaf", [source, leafPart(row.path, row.number)]),
      },
    });
    root.append(cordwood.panel("Leaves", table.element));
    await table.ready;
  };

  /** Return the columns of the table of leaves. */
  function columnsOf(shardings) {
    return [
      { name: "path", label: "Key path", value: (row) => cordwood.naturalKey(row.path) },
      { name: "dtype", label: "Type", value: (row) => row.dtype, cell: (row) => row.dtype },
      {
        name: "size_bytes",
        label: "Size",
        align: "end",
        sum: true,
        value: (row) => row.size_bytes,
        cell: (row) => cordwood.formatBytes(row.size_bytes),
      },
    ];
  }
})(globalThis.cordwood);
