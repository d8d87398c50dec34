"use strict";
// The matrix of layers and kinds between the chosen step of a run and the step before it.
(function (cordwood) {
  const MOST_SIDE_BY_SIDE = 3; // matrices; of more, a selector shows one

  /**
   * Return the panel: `{element, show(index)}`.
   * Digests are compared at once, which reads no arrays; a sample of the values when the user asks
   * for it, and from then on for every step that is shown. All values are offered where the sample
   * is not all.
   */
  cordwood.runMatrix = function ({ steps }) {
    const { element, resourceName } = cordwood;
    const area = element("div", {});
    const tools = element("div", { class: "table-tools" });
    const heading = element("p", { class: "muted" });
    let group = null; // the matrix on screen: params, mu ...
    let asked = cordwood.inExport ? "all" : null; // what the user wants to be compared
    let pending = null;
    const { viewSignal } = cordwood;

    /** Show the matrix of a step and the step before it. */
    async function show(index) {
      pending?.abort(new DOMException("Another step was chosen.", "AbortError"));
      pending = new AbortController();
      const signal = AbortSignal.any([pending.signal, viewSignal]);
      const step = steps[index];
      const before = steps[cordwood.stepBefore(steps, index)];
      cordwood.replace(tools);
      if (step.state !== "whole" || !before) {
        const why = step.state === "whole" ? "there is no step before it" : `it is ${step.state}`;
        cordwood.replace(heading, `Step ${cordwood.printable(step.name, 40)} is not compared: ${why}.`);
        cordwood.replace(area);
        return;
      }
      const [a, b] = [before.name, step.name];
      try {
        const name = resourceName("diff", a, b, "digests");
        if (cordwood.hasResource(name)) {
          const diff = await cordwood.fetchResource(name, { signal });
          if (signal.aborted) return;
          draw(diff, a, b);
          if (diff.equal) return;
        } else if (cordwood.inExport) {
          cordwood.replace(heading, `From step ${a} to ${b}: this file does not hold the difference.`);
          cordwood.replace(area);
        }
        offerValues(a, b, signal);
      } catch (error) {
        if (signal.aborted) return;
        cordwood.replace(heading, `From step ${cordwood.printable(a, 40)} to ${cordwood.printable(b, 40)}`);
        cordwood.replace(area, cordwood.errorBox(error));
      }
    }

    /** Offer to compare values, or do it if the user has asked for it before. */
    function offerValues(a, b, signal) {
      const name = cordwood.stepDifference(a, b, asked === "all" ? ["all", "sample"] : ["sample"]);
      if (name !== null) offer(name, asked !== null, a, b, signal);
    }

    /** Offer a comparison of values. */
    function offer(name, start, a, b, signal) {
      const isAll = name.endsWith("/all");
      const run = async (onProgress, cancelled) => {
        const both = AbortSignal.any([signal, cancelled]);
        const diff = await cordwood.fetchResource(name, { onProgress, signal: both });
        if (signal.aborted) return;
        asked = isAll ? "all" : "sample";
        draw(diff, a, b);
        const all = resourceName("diff", a, b, "all");
        if (!diff.complete && !isAll && cordwood.hasResource(all)) offer(all, false, a, b, signal);
      };
      const title = isAll ? "Compare all values" : "Compare values";
      cordwood.append(tools, cordwood.task({ title, start, run }));
    }

    /** Draw a difference. */
    function draw(diff, a, b) {
      cordwood.replace(
        heading,
        `From step ${cordwood.printable(a, 40)} to ${cordwood.printable(b, 40)}: ${cordwood.printable(diff.verdict, 300)} `,
        diff.read_bytes && !diff.complete ? "(values are from a sample) " : "",
        element("a", { href: cordwood.link("diff", [a, b]) }, "Open the difference"),
      );
      if (!diff.matrices.length) {
        const words = "The key paths of this run name no layers: open the difference to see its leaves.";
        cordwood.replace(area, element("p", { class: "muted" }, words));
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
      cordwood.replace(area, element("div", { class: "matrices" }, charts), meaning(diff));
    }

    /** Return what the colours mean, if there are any. */
    function meaning(diff) {
      const hasColours = diff.matrices.some((each) => each.values.some((value) => cordwood.toNumber(value) > 0));
      const words = "The colour is the L2 norm of the change, relative to the norm before. A click opens the leaves of a cell.";
      return hasColours && element("p", { class: "muted small" }, words);
    }

    /** Open the leaf of a cell; of several leaves, the difference with only these. */
    function openCell(diff, a, b, { group: name, layer, kind, leaves }) {
      if (leaves.length > 1) {
        const query = { group: name, cell: [name, layer, kind].join("|") };
        return cordwood.go(cordwood.link("diff", [a, b], query));
      }
      cordwood.go(cordwood.diffRowLink(a, b, cordwood.rowsOf(diff.rows)[leaves[0]]));
    }

    return {
      element: cordwood.panel("Change since the step before", heading, tools, area),
      show,
    };
  };

  /** Return the name of a group of leaves for a reader. */
  function nameOf(group) {
    return group === "params" ? "parameters" : cordwood.printable(group, 60);
  }
})(globalThis.cordwood);
