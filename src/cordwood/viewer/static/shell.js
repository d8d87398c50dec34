// What surrounds every view: header, navigation, theme, help, and the keys of the whole page.
const {
  announce, element, errorBox, fetchResource, home, icon, inExport, printable, replace, startRouter, svg,
  themeChanged,
} = cordwood;
const THEMES = ["system", "light", "dark"];
const SYSTEM_IS_DARK = matchMedia("(prefers-color-scheme: dark)");
let unkeptTheme = "system";
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
    const text = printable(label, 120);
    const last = i === items.length - 1;
    return element(
      "li",
      last || !href
        ? element("span", { "aria-current": last ? "page" : null }, text)
        : element("a", { href }, text),
    );
  });
  replace(crumbs, element("ol", list));
  crumbs.hidden = items.length < 2;
  const title = printable(items.at(-1)?.label ?? cordwood.start.title, 80);
  document.title = [title, "cordwood"].filter(Boolean).join(" · ");
};

/** Show where a checkpoint or a pair of them stands, or a leaf of it: below the view that opens first. */
cordwood.setPlace = function (sources, path = null) {
  const { kind, title } = cordwood.start;
  const isPair = sources.length > 1;
  const isFirst = kind === (isPair ? "diff" : "checkpoint");
  const label = isPair && isFirst ? "Difference" : sources.map(cordwood.sourceName).join(" → ");
  const view = { label, href: cordwood.link(isPair ? "diff" : "checkpoint", sources) };
  const first = isFirst ? [] : [{ label: isPair ? "Run" : title, href: home() }];
  cordwood.setBreadcrumbs([...first, view, ...(path === null ? [] : [{ label: path || "(root)" }])]);
};

/** Forget the keys and the place of the last view, and mark the link of the one that begins. */
cordwood.beginView = function (route) {
  keys = {};
  cordwood.setBreadcrumbs([]);
  const [head] = location.hash.split("?");
  const owner = route.name === "leaf" && cordwood.link("checkpoint", [route.parts[0]]);
  for (const link of navigation.querySelectorAll("a")) {
    const isCurrent = [head, owner].includes(link.hash) || head.startsWith(`${link.hash}/`);
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
};

/** Return the links to the views that there are. */
function links() {
  const { kind, sources } = cordwood.start;
  if (kind === "run") return [["Run", cordwood.link("run")]];
  const names = kind === "diff" ? ["Before", "After"] : ["Checkpoint"];
  const checkpoints = names.map((name, i) => [name, cordwood.link("checkpoint", [sources[i]])]);
  return kind === "diff" ? [["Difference", home()], ...checkpoints] : checkpoints;
}

/** Return the last name of a path. */
cordwood.lastName = function (path) {
  return path.replace(/\/+$/, "").split("/").at(-1) || path;
};

/** Return the name of a source for a reader: the last name of its path, or the step. */
cordwood.sourceName = function (source) {
  if (cordwood.start.kind === "run") return `step ${source}`;
  return cordwood.lastName(cordwood.start.paths?.[source] ?? source);
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
  crumbs = element("nav.breadcrumbs", { "aria-label": "Breadcrumbs", hidden: true });
  const header = element(
    "header.top",
    element(
      "div.top-line",
      element("a.brand", { href: home(), title: "cordwood" }, logo(), "cordwood"),
      element("span.opened", { title: printable(opened, 1000) }, printable(opened, 200)),
      navigation,
      element("span.spacer"),
      inExport &&
        element("span.badge", { title: "This file holds all it shows, and asks no server" }, "export"),
      element("button.icon-button", { id: "theme", onclick: nextTheme }, icon("theme")),
      element(
        "button.icon-button",
        { "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts ( ? )", onclick: showHelp },
        "?",
      ),
    ),
    crumbs,
  );
  document.body.prepend(element("a.skip", { href: "#view", onclick: skip }, "Skip to the content"), header);
  document.querySelector("main").after(element("footer", footnotes()));
}

/** Return the lines at the foot of the page; an export says what it lacks. */
function footnotes() {
  const { start } = cordwood;
  const version = `cordwood ${printable(start.version ?? "", 40)}`;
  if (!inExport) {
    return element(
      "p",
      `${version} · nothing leaves this machine · `,
      element("kbd", "?"),
      " lists the keys",
    );
  }
  const all = element("code", printable(start.command, 400));
  const lacks = start.left_out_text && printable(start.left_out_text, 400);
  return [
    element("p", `${version} · an export: this file holds all it shows, and asks no server`),
    lacks && element("p", `Left out to keep the file small: ${lacks}. All of it: `, all),
  ];
}

/** Return the sign of the project: stacked wood, seen from its ends. */
function logo() {
  const circle = (cx, cy) => svg("circle", { cx, cy, r: 3.6 });
  return svg(
    "svg.logo",
    { viewBox: "0 0 20 20", "aria-hidden": "true" },
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
    return unkeptTheme;
  }
}

/** Use a theme: the style knows light and dark ones, and not that of the system. */
function applyTheme(theme) {
  const isDark = theme === "dark" || (theme === "system" && SYSTEM_IS_DARK.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  const button = document.getElementById("theme");
  const label = `Theme: ${theme}. Change it ( t )`;
  button?.setAttribute("aria-label", label);
  button?.setAttribute("title", label);
  themeChanged();
}

/** Change to the next theme, and keep it for the next visit. */
function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length];
  try {
    localStorage.setItem("cordwood-theme", theme);
  } catch {
    unkeptTheme = theme; // the browser keeps nothing for this page: it lasts until it is closed
  }
  applyTheme(theme);
  announce(`Theme: ${theme}`);
}

/** Show the keys. */
function showHelp() {
  document.querySelector("dialog")?.remove();
  const dialog = element(
    "dialog.help",
    {
      "aria-label": "Keyboard shortcuts",
      onclose: () => dialog.remove(),
      onclick: (event) => event.target === dialog && dialog.close(),
    },
    element("h2", "Keyboard shortcuts"),
    element(
      "dl",
      HELP.map(([key, action]) => [
        element(
          "dt",
          key.split(/([, ]+)/).map((part) => (/[, ]/.test(part) ? " " : element("kbd", part))),
        ),
        element("dd", action),
      ]),
    ),
    element(
      "p.muted",
      `cordwood ${printable(cordwood.start?.version ?? "", 40)} · nothing leaves this machine`,
    ),
    element("button.button", { onclick: () => dialog.close() }, "Close"),
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
  SYSTEM_IS_DARK.addEventListener("change", () => applyTheme(chosenTheme()));
  try {
    cordwood.start = await fetchResource("start");
  } catch (error) {
    replace(main, errorBox(error));
    return;
  }
  drawHeader();
  applyTheme(chosenTheme());
  await startRouter();
}

start();
