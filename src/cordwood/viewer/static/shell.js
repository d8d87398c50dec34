"use strict";
// What surrounds every view: header, navigation, theme, help, and the keys of the whole page.
(function (cordwood) {
  const { element } = cordwood;
  const THEMES = ["system", "light", "dark"];
  let keys = {}; // of the view on screen
  let crumbs = null;
  let navigation = null;

  const HELP = [
    ["/", "search"],
    ["↑ ↓, j k", "next and previous row, leaf or step"],
    ["→ ←", "unfold and fold"],
    ["Enter", "open"],
    ["Esc, Backspace", "up"],
    ["c", "copy the key path"],
    ["t", "theme: system, light, dark"],
    ["?", "this help"],
  ];

  /** Name the keys of the view on screen: `{"/": function, j: function, ..}`; "up" is Esc. */
  cordwood.setKeys = function (actions) {
    keys = actions;
  };

  /** Show where the view stands: `[{label, href}, ..]`; the last one is the view itself. */
  cordwood.setBreadcrumbs = function (items) {
    const list = items.map(({ label, href }, i) => {
      const text = cordwood.printable(label, 120);
      const last = i === items.length - 1;
      return element(
        "li",
        {},
        last || !href
          ? element("span", { "aria-current": last ? "page" : null }, text)
          : element("a", { href }, text),
      );
    });
    cordwood.replace(crumbs, element("ol", {}, list));
    crumbs.hidden = items.length < 2;
    const title = cordwood.printable(items.at(-1)?.label ?? cordwood.start.title, 80);
    document.title = [title, "cordwood"].filter(Boolean).join(" · ");
  };

  /** Forget the keys and the place of the last view, and mark the link of the one that begins. */
  cordwood.beginView = function (route) {
    keys = {};
    cordwood.setBreadcrumbs([]);
    const [head] = location.hash.split("?");
    for (const link of navigation.querySelectorAll("a")) {
      const isCurrent = head === link.hash || head.startsWith(`${link.hash}/`) || owns(link, route);
      if (isCurrent) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  };

  /** Return true if a link of the navigation leads to the view that a leaf belongs to. */
  function owns(link, route) {
    return route.name === "leaf" && link.hash === cordwood.link("checkpoint", [route.parts[0]]);
  }

  /** Return the links to the views that there are. */
  function links() {
    const { kind, sources } = cordwood.start;
    if (kind === "run") return [["Run", cordwood.link("run")]];
    if (kind === "diff") {
      const [a, b] = sources;
      return [
        ["Difference", cordwood.link("diff", [a, b])],
        ["Before", cordwood.link("checkpoint", [a])],
        ["After", cordwood.link("checkpoint", [b])],
      ];
    }
    return [["Checkpoint", cordwood.link("checkpoint", [sources[0]])]];
  }

  /** Return the name of a source for a reader: the last part of its path, or the step. */
  cordwood.sourceName = function (source) {
    if (cordwood.start.kind === "run") return `step ${source}`;
    const path = cordwood.start.paths?.[source] ?? source;
    return path.replace(/\/+$/, "").split("/").at(-1) || path;
  };

  /** Draw the header. */
  function drawHeader() {
    const { start } = cordwood;
    navigation = element(
      "nav",
      { "aria-label": "Views" },
      links().map(([label, href]) => element("a", { href }, label)),
    );
    navigation.hidden = navigation.children.length < 2;
    const opened = start.kind === "checkpoint" ? start.paths[start.sources[0]] : start.title;
    crumbs = element("nav", { class: "breadcrumbs", "aria-label": "Breadcrumbs", hidden: true });
    const header = element(
      "header",
      { class: "top" },
      element(
        "div",
        { class: "top-line" },
        element("a", { class: "brand", href: cordwood.home(), title: "cordwood" }, logo(), "cordwood"),
        element(
          "span",
          { class: "opened", title: cordwood.printable(opened, 1000) },
          cordwood.printable(opened, 200),
        ),
        navigation,
        element("span", { class: "spacer" }),
        start.exported || cordwood.inExport
          ? element(
              "span",
              { class: "badge", title: "This file holds all it shows, and asks no server" },
              "export",
            )
          : null,
        element(
          "button",
          { type: "button", class: "icon-button", id: "theme", onclick: nextTheme },
          cordwood.icon("theme"),
        ),
        element(
          "button",
          {
            type: "button",
            class: "icon-button",
            "aria-label": "Keyboard shortcuts",
            title: "Keyboard shortcuts ( ? )",
            onclick: showHelp,
          },
          "?",
        ),
      ),
      crumbs,
    );
    document.body.prepend(
      element("a", { class: "skip", href: "#view", onclick: skip }, "Skip to the content"),
      header,
    );
    document.querySelector("main").after(element("footer", {}, footnotes()));
  }

  /** Return the lines at the foot of the page; an export says what it lacks. */
  function footnotes() {
    const { start } = cordwood;
    const version = `cordwood ${cordwood.printable(start.version ?? "", 40)}`;
    if (!cordwood.inExport) {
      return element("p", {}, `${version} · nothing leaves this machine · `, element("kbd", {}, "?"), " lists the keys");
    }
    const names = {
      leaf: ["leaf page", "leaf pages"],
      statistics: ["leaf's statistics", "leaves' statistics"],
      diff: ["difference", "differences"],
      "diff-leaf": ["difference of a leaf", "differences of leaves"],
      norms: ["step's norms", "steps' norms"],
      checkpoint: ["list of leaves", "lists of leaves"],
    };
    const lacks = Object.entries(start.left_out ?? {}).map(([kind, count]) =>
      cordwood.counted(count, ...(names[kind] ?? [cordwood.printable(kind, 40), `of ${cordwood.printable(kind, 40)}`])),
    );
    return [
      element("p", {}, `${version} · an export: this file holds all it shows, and asks no server`),
      lacks.length > 0 &&
        element(
          "p",
          {},
          `Left out to keep the file small: ${lacks.join(", ")}. All of it: `,
          element("code", {}, cordwood.printable(start.command, 400)),
        ),
    ];
  }

  /** Return the sign of the project: stacked wood, seen from its ends. */
  function logo() {
    const circle = (cx, cy) => cordwood.svg("circle", { cx, cy, r: 3.6 });
    return cordwood.svg(
      "svg",
      { class: "logo", viewBox: "0 0 20 20", "aria-hidden": "true" },
      circle(5.6, 14.2),
      circle(14.4, 14.2),
      circle(10, 6.4),
    );
  }

  /** Move the focus to the content. */
  function skip(event) {
    event.preventDefault();
    document.querySelector("main").focus();
  }

  /** Return the theme that was chosen, or "system". */
  function chosenTheme() {
    try {
      const theme = localStorage.getItem("cordwood-theme");
      return THEMES.includes(theme) ? theme : "system";
    } catch {
      return document.documentElement.dataset.theme ?? "system";
    }
  }

  /** Use a theme. */
  function applyTheme(theme) {
    const root = document.documentElement;
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    const button = document.getElementById("theme");
    const label = `Theme: ${theme}. Change it ( t )`;
    button?.setAttribute("aria-label", label);
    button?.setAttribute("title", label);
    cordwood.themeChanged();
  }

  /** Change to the next theme, and keep it for the next visit. */
  function nextTheme() {
    const theme = THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length];
    try {
      localStorage.setItem("cordwood-theme", theme);
    } catch {
      // The browser keeps nothing for this page: the theme lasts until it is closed.
    }
    applyTheme(theme);
    cordwood.announce(`Theme: ${theme}`);
  }

  /** Show the keys. */
  function showHelp() {
    document.querySelector("dialog")?.remove();
    const dialog = element(
      "dialog",
      {
        class: "help",
        "aria-label": "Keyboard shortcuts",
        onclose: () => dialog.remove(),
        onclick: (event) => event.target === dialog && dialog.close(),
      },
      element("h2", {}, "Keyboard shortcuts"),
      element(
        "dl",
        {},
        HELP.map(([key, action]) => [
          element("dt", {}, key.split(/([, ]+)/).map((part) => (/[, ]/.test(part) ? " " : element("kbd", {}, part)))),
          element("dd", {}, action),
        ]),
      ),
      element(
        "p",
        { class: "muted" },
        `cordwood ${cordwood.printable(cordwood.start?.version ?? "", 40)} · nothing leaves this machine`,
      ),
      element("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close"),
    );
    document.body.append(dialog);
    dialog.showModal();
  }

  /** Follow a key that nothing else has followed. */
  function onKey(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const typing = event.target.matches?.("input:not([type=checkbox]):not([type=range]), textarea, select");
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const name = event.key === "Escape" || event.key === "Backspace" ? "up" : event.key;
    const action = { t: nextTheme, "?": showHelp, ...keys }[name];
    if (!action) return;
    event.preventDefault();
    action();
  }

  /** Start the page. */
  async function start() {
    const main = document.querySelector("main");
    main.tabIndex = -1;
    applyTheme(chosenTheme());
    document.addEventListener("keydown", onKey);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", cordwood.themeChanged);
    try {
      cordwood.start = await cordwood.fetchResource("start");
    } catch (error) {
      cordwood.replace(main, cordwood.errorBox(error));
      return;
    }
    drawHeader();
    applyTheme(chosenTheme());
    await cordwood.startRouter();
  }

  start();
})(globalThis.cordwood);
