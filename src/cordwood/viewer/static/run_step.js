"use strict";
// The facts of one step of a run, and the way to its checkpoint and its differences.
(function (cordwood) {
  /** Return the position of the nearest earlier step that can be opened; -1 if there is none. */
  cordwood.stepBefore = function (steps, index) {
    for (let i = index - 1; i >= 0; i--) if (steps[i].state === "whole") return i;
    return -1;
  };

  /** Return the name of the most exact difference of two steps that can be had; null if none. */
  cordwood.stepDifference = function (a, b, reads = ["all", "sample", "digests"]) {
    const names = reads.map((read) => cordwood.resourceName("diff", a, b, read));
    return names.find((name) => cordwood.hasResource(name)) ?? null;
  };

  /** Return the facts of a step as an element. */
  cordwood.stepFacts = function (steps, index) {
    const { element } = cordwood;
    const step = steps[index];
    const before = cordwood.stepBefore(steps, index);
    const box = element(
      "div",
      { class: `step-facts state-${step.state}` },
      element(
        "div",
        { class: "step-head" },
        element("h3", {}, `Step ${cordwood.printable(step.name, 60)}`),
        cordwood.stepMarks(step).map(cordwood.stepMark),
      ),
      step.problem && element("p", { class: "step-problem", role: "note" }, cordwood.printable(step.problem, 2000)),
      links(step, before < 0 ? null : steps[before]),
      cordwood.facts([
        ...metrics(step, before < 0 ? null : steps[before]),
        ["Saved", cordwood.stepTime(step) || null],
        ["Format", step.format || null],
        ["Kept because", kept(step)],
      ]),
      sizes(step, Math.max(...steps.map((each) => each.disk_bytes ?? 0))),
    );
    return box;
  };

  /** Return the links of a step, as far as it can be opened. */
  function links(step, before) {
    const { element, hasResource, resourceName } = cordwood;
    if (step.state !== "whole") return null;
    const open = hasResource(resourceName("checkpoint", step.name));
    const compare = before && cordwood.stepDifference(before.name, step.name);
    return element(
      "p",
      { class: "actions" },
      open &&
        element("a", { class: "button", href: cordwood.link("checkpoint", [step.name]) }, "Open this step"),
      compare &&
        element(
          "a",
          { class: "button", href: cordwood.link("diff", [before.name, step.name]) },
          `Difference with step ${cordwood.printable(before.name, 20)}`,
        ),
      !open && element("span", { class: "muted" }, "This file does not hold the leaves of this step."),
    );
  }

  /** Return the metrics of a step, each with its change since the step before. */
  function metrics(step, before) {
    const { element, formatNumber, toNumber } = cordwood;
    return Object.entries(step.metrics).map(([name, value]) => {
      const change = toNumber(value) - toNumber(before?.metrics[name]);
      const sign = change > 0 ? "+" : "";
      const words = Number.isFinite(change) ? ` ${sign}${formatNumber(change)}` : "";
      return [
        cordwood.printable(name, 60),
        [formatNumber(value), words && element("span", { class: "muted small" }, words)],
      ];
    });
  }

  /** Return the reasons why no policy deletes a step; null if its files say none. */
  function kept(step) {
    return step.kept.length ? cordwood.printable(step.kept.join("; "), 500) : null;
  }

  /** Return the bytes of a step as a bar: written and linked, beside the largest step. */
  function sizes(step, most) {
    const { element } = cordwood;
    if (step.disk_bytes === null) {
      return element("p", { class: "muted" }, "Sizes are not known: the run is in an object store.");
    }
    const part = (name, bytes) => {
      const piece = element("span", { class: `size-${name}` });
      piece.style.width = `${(100 * (bytes ?? 0)) / Math.max(1, most)}%`;
      return piece;
    };
    return element(
      "div",
      { class: "step-sizes" },
      element(
        "div",
        { class: "size-bar", role: "img", "aria-label": cordwood.stepSizes(step) },
        part("written", step.written_bytes),
        part("linked", step.linked_bytes),
      ),
      element(
        "div",
        { class: "legend" },
        element("span", {}, `${cordwood.formatBytes(step.disk_bytes)} on disk:`),
        element("span", { class: "key-written" }),
        element("span", {}, `${cordwood.formatBytes(step.written_bytes)} written`),
        element("span", { class: "key-linked" }),
        element("span", {}, `${cordwood.formatBytes(step.linked_bytes)} linked from earlier steps`),
      ),
    );
  }

  /** Return a form that opens the difference of any two steps: `{element, set(before, after)}`. */
  cordwood.stepPair = function (steps) {
    const { element } = cordwood;
    const choose = (label) =>
      element(
        "select",
        { "aria-label": label, onchange: follow },
        steps.map((step, i) => {
          const text = cordwood.printable(step.name, 40) + (step.state === "whole" ? "" : ` (${step.state})`);
          return element("option", { value: i, disabled: step.state !== "whole" }, text);
        }),
      );
    const first = choose("Difference from step");
    const second = choose("Difference to step");
    const open = element("a", { class: "button" }, "Open the difference");
    const note = element("span", { class: "muted", role: "status" });

    /** Make the link follow the two steps. */
    function follow() {
      const [before, after] = [steps[first.value], steps[second.value]];
      const isPossible = before && after && before !== after;
      const isHeld = isPossible && cordwood.stepDifference(before.name, after.name);
      cordwood.replace(note, isPossible && !isHeld && "not in this file");
      if (isHeld) {
        open.setAttribute("href", cordwood.link("diff", [before.name, after.name]));
      } else open.removeAttribute("href");
    }

    const box = element(
      "div",
      { class: "step-pair" },
      element("span", { class: "muted" }, "Or compare step"),
      first,
      element("span", { class: "muted" }, "with"),
      second,
      open,
      note,
    );
    return {
      element: box,
      set(before, after) {
        if (before >= 0) first.value = String(before);
        second.value = String(after);
        follow();
      },
    };
  };
})(globalThis.cordwood);
