// Every view has an address behind the '#'. The router draws the view of the address.
const { ResourceError, element, printable, replace, showTooltip } = cordwood;
const LONGEST_PATH = 1000; // longer key paths stand in an address as their number
// The headings of errors; others have the name of their type.
const TITLES = { LeftOut: "Not in this file", NoServer: "No answer", NoView: "No such view" };
let leave = null; // ends the view on screen
let visit = 0;

/** Return the address of a view: `#/name/part/part?query`. */
cordwood.link = function (name, parts = [], query = {}) {
  const segments = [name, ...parts.map(encodePart)];
  if (name === "diff-leaf") segments.splice(0, 4, "diff", segments[1], segments[2], "leaf", segments[3]);
  const search = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== null && value !== undefined),
  ).toString();
  return `#/${segments.join("/")}${search ? `?${search}` : ""}`;
};

/** Return a part of an address, percent-encoded; a number of a leaf keeps its '@'. */
function encodePart(part) {
  const text = String(part);
  return /^@\d+$/.test(text) ? text : encodeURIComponent(text.toWellFormed());
}

/**
 * Return what stands for a leaf in an address: its key path; or '@' and its number, if the path
 * is long, begins with '@' or cannot be encoded.
 */
cordwood.leafPart = function (path, number) {
  const plain = path.length <= LONGEST_PATH && path.isWellFormed() && !path.startsWith("@");
  return plain ? path : `@${number}`;
};

/** Return the number of the leaf that a part of an address stands for; -1 if none. */
cordwood.leafNumber = function (paths, part) {
  const numbered = /^@(\d+)$/.exec(part);
  if (!numbered) return paths.indexOf(part);
  return Number(numbered[1]) < paths.length ? Number(numbered[1]) : -1;
};

/** Go to an address. */
cordwood.go = function (hash) {
  if (location.hash === hash) show();
  else location.hash = hash;
};

/** Change the query of the address without a new entry in the history; null removes a name. */
cordwood.setQuery = function (changes) {
  const [address, search] = location.hash.split("?");
  const query = new URLSearchParams(search ?? "");
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  history.replaceState(history.state, "", `${address || "#/"}${text ? `?${text}` : ""}`);
};

/** Return the route of an address: name, decoded parts, query. */
cordwood.parseRoute = function (hash) {
  const [address, search] = hash.replace(/^#\/?/, "").split("?");
  const segments = address.split("/").map(decode);
  const query = new URLSearchParams(search ?? "");
  if (segments[0] === "diff" && segments.length >= 5 && segments[3] === "leaf") {
    return { name: "diff-leaf", parts: [segments[1], segments[2], segments[4]], query };
  }
  return { name: segments[0], parts: segments.slice(1), query };
};

/** Return a percent-decoded text, or the text itself if it cannot be decoded. */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Return the address of the view that opens first. */
cordwood.home = function () {
  const [a, b] = cordwood.start.sources;
  if (cordwood.start.kind === "run") return cordwood.link("run");
  return cordwood.start.kind === "diff" ? cordwood.link("diff", [a, b]) : cordwood.link("checkpoint", [a]);
};

/** Draw the view of the address in place of the view on screen. */
async function show() {
  const route = cordwood.parseRoute(location.hash);
  if (!route.name) {
    history.replaceState(null, "", cordwood.home());
    return show();
  }
  leave?.();
  const first = visit === 0;
  const ending = new AbortController();
  const current = ++visit;
  let cleanup = null;
  leave = () => {
    ending.abort(new DOMException("The view was left.", "AbortError"));
    cleanup?.();
  };
  cordwood.viewSignal = route.signal = ending.signal;
  showTooltip(null);
  const root = element("div", { class: `view view-${route.name}` });
  const main = document.querySelector("main");
  main.setAttribute("aria-busy", "true");
  const draw = cordwood.views[route.name];
  cordwood.beginView(route);
  replace(main, root);
  if (!first) {
    window.scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
  try {
    if (!draw) {
      throw new ResourceError("NoView", `There is no view at ${location.hash}.`);
    }
    const result = await draw(root, route);
    if (current !== visit) result?.();
    else cleanup = result ?? null;
  } catch (error) {
    if (current === visit && !ending.signal.aborted) root.append(cordwood.errorBox(error));
  } finally {
    if (current === visit) main.removeAttribute("aria-busy");
  }
}

/** Follow the address from now on. */
cordwood.startRouter = function () {
  window.addEventListener("hashchange", show);
  return show();
};

/** Return an element that says what went wrong. */
cordwood.errorBox = function (error) {
  const expected = error instanceof ResourceError;
  if (!expected) console.error(error);
  return element(
    "div.error",
    { role: "alert" },
    element("strong", expected ? (TITLES[error.type] ?? printable(error.type, 80)) : "The page failed"),
    element("p", printable(error.message, 4000)),
  );
};
