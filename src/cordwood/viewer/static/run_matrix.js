"use strict";
// The matrix of layers and kinds between the chosen step of a run and the step before it.
(function (cordwood) {
  /**
   * Return the panel: `{element, show(index)}`.
   * Digests are compared at once, which reads no arrays; values when the user asks for them, and
   * from then on for every step that is shown.
   */
  cordwood.runMatrix = function ({ steps }) {
    const { element, resourceName } = cordwood;
    const area = element("div", {});
    const tools = element("div", { class: "table-tools" });
    const heading = element("p", { class: "muted" });
    let group = null; // the matrix on screen: params, mu ...
    let withValues = false;
    let pending = null;

    /** Show the matrix of a step and the step before it. */
    async function show(index) {
      pending?.abort(new DOMException("Another step was chosen.", "AbortError"));
      pending = new AbortController();
      const { signal } = pending;
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
      const all = resourceName("diff", a, b, "all");
      try {
        const fetch = (name) => cordwood.fetchResource(name, { signal });
        const isQuick = !(withValues && cordwood.hasResource(all));
        const diff = isQuick ? await fetch(resourceName("diff", a, b, "digests")) : null;
        if (signal.aborted) return;
        if (diff) draw(diff, a, b);
        offerValues(diff, all, a, b, signal);
      } catch (error) {
        if (signal.aborted || cordwood.viewSignal?.aborted) return;
        cordwood.replace(heading, `From step ${cordwood.printable(a, 40)} to ${cordwood.printable(b, 40)}`);
        cordwood.replace(area, cordwood.errorBox(error));
      }
    }

    /** Offer to compare the values, or do it if the user has asked for it before. */
    function offerValues(diff, all, a, b, signal) {
      if (diff?.equal || !cordwood.hasResource(all)) return;
      const task = cordwood.task({
        title: "Compare values",
        start: withValues,
        run: async (onProgress, cancelled) => {
          const both = AbortSignal.any([signal, cancelled]);
          const value = await cordwood.fetchResource(all, { onProgress, signal: both });
          if (signal.aborted) return;
          withValues = true;
          draw(value, a, b);
        },
      });
      cordwood.append(tools, task);
    }

    /** Draw a difference. */
    function draw(diff, a, b) {
      cordwood.replace(
        heading,
        `From step ${cordwood.printable(a, 40)} to ${cordwood.printable(b, 40)}: ${cordwood.printable(diff.verdict, 300)} `,
        element("a", { href: cordwood.link("diff", [a, b]) }, "Open the difference"),
      );
      if (!diff.matrices.length) {
        const words = "The key paths of this run name no layers: open the difference to see its leaves.";
        cordwood.replace(area, element("p", { class: "muted" }, words));
        return;
      }
      const matrix = cordwood.layerMatrix({
        matrices: diff.matrices,
        group,
        onGroup: (name) => (group = name),
        onPick: ({ leaves }) => openLeaf(diff, a, b, leaves),
      });
      cordwood.replace(area, matrix);
    }

    /** Open the difference of the leaf of a cell; of several leaves, the search for them. */
    function openLeaf(diff, a, b, numbers) {
      const paths = numbers.map((number) => diff.rows.path[number]);
      cordwood.go(cordwood.link("diff", [a, b], { search: commonStart(paths) }));
    }

    return {
      element: cordwood.panel("Change since the step before", heading, tools, area),
      show,
    };
  };

  /** Return the start that all key paths have. */
  function commonStart(paths) {
    let start = paths[0] ?? "";
    for (const path of paths) while (!path.startsWith(start)) start = start.slice(0, -1);
    return start;
  }
})(globalThis.cordwood);
