"use strict";
// The view of one leaf on both sides: statistics, histogram and strip of the change.
(function (cordwood) {
  const READ_AT_ONCE_BYTES = 64 << 20;
  const EQUAL = ["equal", "identical", "renamed"];

  /** Draw the difference of a leaf. */
  cordwood.views["diff-leaf"] = async function (root, route) {
    const { element } = cordwood;
    const [a, b, part] = route.parts;
    const up = cordwood.link("diff", [a, b]);
    cordwood.setBreadcrumbs(breadcrumbs(a, b, up, part));
    cordwood.setKeys({ up: () => cordwood.go(up) });
    const result = await cordwood.fetchResource(cordwood.diffAtHand(a, b), { signal: route.signal });
    const rows = cordwood.rowsOf(result.rows);
    const row = rows[cordwood.leafNumber(result.rows.path, part)];
    if (!row) {
      throw new cordwood.ResourceError("NoView", `Neither side has a leaf ${cordwood.printable(part)}.`);
    }
    cordwood.setBreadcrumbs(breadcrumbs(a, b, up, row.path));
    const neighbours = rows.filter((each) => each.i !== null && each.j !== null && !EQUAL.includes(each.state));
    const step = stepper(a, b, neighbours, row);
    cordwood.setKeys({ ...step.keys, up: () => cordwood.go(up) });
    const badge = element("span", {}, cordwood.stateBadge(row.state));
    const body = element("div", { class: "panels" });
    cordwood.append(root, head(a, b, row, badge, step.element), body);
    const onResult = ({ statistics, complete }) => {
      if (row.state !== "unread" && row.state !== "changed") return;
      if (statistics.differing || statistics.bits || complete) {
        const differs = statistics.differing || statistics.bits;
        cordwood.replace(badge, cordwood.stateBadge(differs ? "changed" : "equal"));
      }
    };
    await drawBody(body, a, b, row, route.signal, onResult);
  };

  /** Return the way to the leaf from the first view. */
  function breadcrumbs(a, b, up, path) {
    const pair = { label: "Difference", href: up };
    const leaf = { label: path === "" ? "(root)" : path };
    if (cordwood.start.kind !== "run") return [pair, leaf];
    const label = `${cordwood.sourceName(a)} → ${cordwood.sourceName(b)}`;
    return [{ label: "Run", href: cordwood.link("run") }, { ...pair, label }, leaf];
  }

  /** Return the buttons and the keys that lead to the leaves before and after that differ. */
  function stepper(a, b, rows, row) {
    const { element } = cordwood;
    const before = rows.findLast((each) => each.number < row.number);
    const after = rows.find((each) => each.number > row.number);
    const open = (target) => target && cordwood.go(cordwood.diffRowLink(a, b, target));
    const button = (target, icon, label) =>
      element(
        "button",
        {
          type: "button",
          class: "icon-button",
          disabled: !target,
          title: `${label} leaf that differs`,
          "aria-label": `${label} leaf that differs`,
          onclick: () => open(target),
        },
        cordwood.icon(icon),
      );
    const [previous, next] = [() => open(before), () => open(after)];
    return {
      element: element(
        "span",
        { class: "button-group" },
        button(before, "previous", "Previous"),
        button(after, "next", "Next"),
      ),
      keys: { k: previous, ArrowUp: previous, j: next, ArrowDown: next },
    };
  }

  /** Return the heading: key path, state, and the type on both sides. */
  function head(a, b, row, badge, step) {
    const { element } = cordwood;
    const sides = [
      ["a", a, row.i, row.before],
      ["b", b, row.j, row.after],
    ].map(([letter, source, number, type]) => {
      const path = letter === "a" ? (row.renamed_from ?? row.path) : row.path;
      const href =
        number === null ? null : cordwood.link("leaf", [source, cordwood.leafPart(path, number)]);
      const text = element("code", {}, cordwood.printable(type ?? "absent", 200));
      return element(
        "div",
        { class: "side" },
        element("span", { class: "badge" }, letter),
        href && cordwood.hasResource(cordwood.resourceName("leaf", source, number))
          ? element("a", { href, title: "Open this side" }, text)
          : text,
      );
    });
    return [
      element(
        "div",
        { class: "diff-leaf-head" },
        element("h1", {}, cordwood.keyPath(row.path)),
        badge,
        element("span", { class: "spacer" }),
        step,
      ),
      row.renamed_from !== null &&
        element("p", { class: "muted" }, "renamed from ", cordwood.keyPath(row.renamed_from)),
      element("div", { class: "diff-head" }, sides[0], "→", sides[1]),
    ];
  }

  /** Draw what is known about the change, after reading a sample or all of it. */
  async function drawBody(body, a, b, row, signal, onResult) {
    const { element } = cordwood;
    const note = whyNothing(row);
    if (note) {
      cordwood.replace(body, cordwood.panel("Change", element("p", {}, note)));
      return;
    }
    const name = (read) => cordwood.resourceName("diff-leaf", a, b, row.i, row.j, read);
    const place = element("div", { class: "panels" });
    /** Draw a result. */
    function show(result) {
      cordwood.replace(place, drawing(result));
      onResult(result);
    }
    if (cordwood.inExport) {
      const read = cordwood.hasResource(name("all")) ? "all" : "sample";
      cordwood.replace(body, place);
      show(await cordwood.fetchResource(name(read), { signal }));
      return;
    }
    const first = row.size_bytes < READ_AT_ONCE_BYTES ? "all" : "sample";
    const more = element("div", {});
    const run = (read) => async (onProgress, each) => {
      const result = await cordwood.fetchResource(name(read), { onProgress, signal: each });
      show(result);
      if (result.complete) cordwood.replace(more);
      else cordwood.replace(more, readAll(result, run("all")));
    };
    cordwood.replace(
      body,
      cordwood.task({ title: "Compare values", start: true, run: run(first) }),
      place,
      more,
    );
  }

  /** Return the button that reads all of a leaf. */
  function readAll(result, run) {
    const size = cordwood.formatBytes(result.size_bytes);
    return cordwood.task({ title: `Compare all elements (reads ${size} of each side)`, run });
  }

  /** Return why there is nothing to read, or null. */
  function whyNothing(row) {
    if (row.i === null || row.j === null) return `This leaf is only in ${row.i === null ? "b" : "a"}.`;
    if (row.state === "identical") return "Both sides are identical by digest: nothing was read.";
    if (row.state === "renamed") return "The bytes are equal; only the key path is another one.";
    if (row.state === "reshaped") return "The shapes differ, so elements cannot be paired.";
    const isArray = (text) => /\[[\d,]*\]$/.test(text);
    if (!isArray(row.before) || !isArray(row.after)) {
      return "This is no array of numbers; both values are shown above.";
    }
    return null;
  }

  /** Return the statistics and the charts of a change. */
  function drawing(result) {
    const { element } = cordwood;
    const charts = [];
    if (result.histogram) {
      charts.push(
        cordwood.charts.histogram({
          ...result.histogram,
          label: "Histogram of the change, b − a",
          size: result.complete ? result.statistics.size : null,
        }),
      );
    }
    if (result.strip.length > 1) {
      charts.push(
        cordwood.charts.strip({
          values: result.strip,
          label: "Mean |b − a| along the elements, in C order",
          place: (_, column) => `elements ${share(column)} to ${share(column + 1)}`,
        }),
      );
    }

    /** Return the position of a segment as a percentage. */
    function share(column) {
      return `${((100 * column) / result.strip.length).toFixed(1)} %`;
    }

    const sample = result.complete
      ? `all ${cordwood.formatBytes(result.read_bytes)} of each side`
      : `a sample: ${cordwood.formatBytes(result.read_bytes)} of ` +
        `${cordwood.formatBytes(result.size_bytes)} of each side`;
    return [
      cordwood.panel(
        "Change",
        element("p", { class: "muted" }, `From ${sample}.`),
        cordwood.facts(pairs(result.statistics)),
      ),
      charts.length > 0 && cordwood.panel("Where and how much", charts),
    ];
  }

  /** Return the statistics of a change as names and values. */
  function pairs(statistics) {
    const { formatNumber, formatCount } = cordwood;
    const { size, differing, bits } = statistics;
    const broken = (count) =>
      count ? cordwood.element("strong", { class: "damaged" }, formatCount(count)) : "0";
    return [
      ["changed", `${cordwood.formatShare(statistics.share)} (${formatCount(differing)} of ${formatCount(size)})`],
      ["relative L2", orNull(statistics.relative_l2, formatNumber)],
      ["L2 of b − a", orNull(statistics.l2, formatNumber)],
      ["max |b − a|", orNull(statistics.max_abs, formatNumber)],
      ["max relative", orNull(statistics.max_rel, formatNumber)],
      ["cosine", orNull(statistics.cosine, (value) => String(Number(cordwood.toNumber(value).toFixed(6))))],
      ["sign flips", formatCount(statistics.sign_flips)],
      ["new NaN", broken(statistics.new_nan)],
      ["new infinite", broken(statistics.new_inf)],
      ["equal but for bits", bits ? formatCount(bits) : null],
    ];
  }

  /** Return a formatted value, or null if there is none. */
  function orNull(value, format) {
    return value === null || value === undefined ? null : format(value);
  }
})(globalThis.cordwood);
