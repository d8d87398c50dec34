// Elements of the document, and the controls made of them. Text enters as text nodes only.
const { formatBytes, printable } = cordwood;
const SVG = "http://www.w3.org/2000/svg";

/**
 * Return an element: `element("p.muted.small", { title }, "text", [more])`.
 * The names behind the tag are classes. The attributes may be left out. A function under `on...` is a
 * listener, an object under `style` sets its members; false, null and undefined attributes are left out;
 * children that are no nodes become text.
 */
const element = (cordwood.element = function (tag, ...rest) {
  const [name, classes] = cut(tag);
  const made = fill(document.createElement(name), classes, rest);
  if (name === "button") made.type = "button"; // and no submission of a form
  return made;
});

/** Return an SVG element, made in the same way. */
const svg = (cordwood.svg = function (tag, ...rest) {
  const [name, classes] = cut(tag);
  return fill(document.createElementNS(SVG, name), classes, rest);
});

/** Return a tag without its classes, and these. */
function cut(tag) {
  const at = tag.indexOf(".");
  return at < 0 ? [tag, ""] : [tag.slice(0, at), tag.slice(at + 1).replaceAll(".", " ")];
}

/** Set the classes and the attributes of an element, and append its children. */
function fill(made, classes, rest) {
  if (classes) made.setAttribute("class", classes);
  const hasAttributes = rest.length && Object.getPrototypeOf(rest[0] ?? "") === Object.prototype;
  for (const [name, value] of Object.entries(hasAttributes ? rest.shift() : {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  cordwood.append(made, rest);
  return made;
}

/** Append children to an element: nodes, texts, and lists of those; null and false are skipped. */
cordwood.append = function (element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
};

/** Replace all children of an element. */
cordwood.replace = function (element, ...children) {
  element.replaceChildren();
  cordwood.append(element, ...children);
};

/** Copy a text and say so to everybody; works on file: URLs and over plain HTTP as well. */
cordwood.copy = async function (text) {
  let copied = false;
  try {
    await navigator.clipboard.writeText(text);
    copied = true;
  } catch {
    const area = element("textarea.off-screen", { "aria-hidden": "true" });
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    copied = document.execCommand("copy");
    area.remove();
    focused?.focus?.();
  }
  cordwood.announce(
    copied
      ? `Copied ${printable(text, 60)}`
      : "The browser did not allow copying: select the text and copy it by hand.",
  );
};

/** Return a button that copies a text. */
cordwood.copyButton = function (text, label = "Copy the key path") {
  const button = cordwood.iconButton("copy", label, (event) => {
    event.stopPropagation();
    event.preventDefault();
    cordwood.copy(text);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1200);
  });
  button.className = "copy";
  return button;
};

// Drawings of 16 by 16 units.
const ICONS = {
  copy: "M5.5 5.5V2.5h8v8h-3M2.5 5.5h8v8h-8z",
  theme: "M8 2a6 6 0 0 0 0 12zM8 2a6 6 0 0 1 0 12",
  previous: "M10 3 5 8l5 5",
  next: "M6 3l5 5-5 5",
};

/** Return a small drawing that screen readers skip. */
cordwood.icon = function (name) {
  return svg(
    "svg",
    { class: `icon icon-${name}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { d: ICONS[name] }),
  );
};

/** Return a button with a small drawing. */
cordwood.iconButton = function (icon, label, onclick, attributes = {}) {
  const all = { title: label, "aria-label": label, onclick, ...attributes };
  return element("button.icon-button", all, cordwood.icon(icon));
};

/** Return a list to choose from: `choices` are `[value, label, disabled]`. */
cordwood.select = function (label, choices, value, onChange) {
  const options = choices.map(([each, text, disabled]) =>
    element("option", { value: each, selected: each === value, disabled }, printable(text, 60)),
  );
  return element(
    "select",
    { "aria-label": label, onchange: ({ target }) => onChange(target.value) },
    options,
  );
};

/** Return a field to search with; `onInput(text)` follows each change. `hint` is shown in it behind the label. */
cordwood.searchInput = function (label, hint, value, onInput, attributes = {}) {
  const input = element("input.search", {
    type: "search",
    placeholder: label + hint,
    "aria-label": label,
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => onInput(input.value),
    ...attributes,
  });
  input.value = value;
  return input;
};

/** Return buttons of which one is pressed: `choices` are `[value, label]`. */
cordwood.segments = function (label, choices, value, onChange) {
  const buttons = choices.map(([each, text]) => element("button", { onclick: () => choose(each) }, text));
  const press = (chosen) =>
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(choices[i][0] === chosen)));

  /** Press the button of a value, and say so to the caller. */
  function choose(chosen) {
    press(chosen);
    onChange(chosen);
  }

  press(value);
  return element("div.segments", { role: "group", "aria-label": label }, buttons);
};

/** Follow a key by the action of its name, and by nothing else; an action that returns false does not. */
cordwood.followKey = function (event, actions) {
  if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, event.key)) return;
  if (actions[event.key]() === false) return;
  event.preventDefault();
  event.stopPropagation();
};

/** Return a key path with a button that copies the whole of it. */
cordwood.keyPath = function (path, limit = 200) {
  const text = path === "" ? "(root)" : printable(path, limit);
  return element("span.key-path", element("code", text), cordwood.copyButton(path));
};

/** Return a list of names and values; pairs whose value is null or "" are left out. */
cordwood.facts = function (pairs) {
  const shown = pairs.filter(([, value]) => (value ?? "") !== "");
  return element(
    "dl.facts",
    shown.map(([name, value]) => element("div", element("dt", name), element("dd", value))),
  );
};

/** Return a titled part of a view. */
cordwood.panel = function (title, ...children) {
  return element("section.panel", { "aria-label": title }, element("h2", title), ...children);
};

let announcement = null;
let timer = 0;

/** Show a short message at the foot of the page, and tell it to screen readers. */
cordwood.announce = function (text) {
  announcement ??= document.body.appendChild(element("div.toast", { role: "status" }));
  cordwood.replace(announcement, text);
  announcement.classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => announcement.classList.remove("shown"), 2500);
};

let tooltip = null;

/** Show a tooltip (lines of text) beside a point of the window; null hides it. */
cordwood.showTooltip = function (lines, x = 0, y = 0) {
  tooltip ??= document.body.appendChild(element("div.tooltip", { "aria-hidden": "true" }));
  tooltip.hidden = lines === null;
  if (lines === null) return;
  cordwood.replace(
    tooltip,
    lines.map((line) => element("div", line)),
  );
  const { width, height } = tooltip.getBoundingClientRect();
  const room = document.documentElement.clientWidth - width - 8;
  const below = y + 16 + height < window.innerHeight;
  tooltip.style.left = `${Math.max(8, Math.min(x + 12, room))}px`;
  tooltip.style.top = `${below ? y + 16 : Math.max(8, y - height - 12)}px`;
};

/**
 * Return an element with a button that starts `run(onProgress, signal)`, its progress and Cancel.
 * `start: true` starts at once; `again` is the button's text after a success (none: no button).
 * The work is cancelled when the view is left.
 */
cordwood.task = function ({ title, run, start = false, again = null }) {
  const box = element("div.task");
  const viewSignal = cordwood.viewSignal;

  /** Show the button, and what the last attempt ended with. */
  function rest(label, note = null) {
    const button = label === null ? null : element("button.button", { onclick: begin }, label);
    cordwood.replace(box, button, note);
    box.dataset.state = "idle";
    return button;
  }

  /** Run the work and show its progress. */
  async function begin() {
    const controller = new AbortController();
    const cancel = () => controller.abort(new DOMException("Cancelled.", "AbortError"));
    viewSignal?.addEventListener("abort", cancel, { once: true });
    const bar = element("progress", { "aria-label": title });
    const words = element("span.task-words", "Starting…");
    const button = element("button.button.quiet", { onclick: cancel }, "Cancel");
    cordwood.replace(box, bar, button, words); // the words grow: the button must not move
    box.dataset.state = "running";
    const focused = document.activeElement === document.body;
    if (focused && !start) button.focus({ preventScroll: true });
    try {
      await run((progress) => showProgress(bar, words, progress), controller.signal);
      rest(again);
      box.dataset.state = "done";
    } catch (error) {
      if (!controller.signal.aborted) rest(title, cordwood.errorBox(error));
      else if (!viewSignal?.aborted) {
        rest(title, element("span.muted", { role: "status" }, "Cancelled."));
        box.dataset.state = "cancelled";
      }
    } finally {
      viewSignal?.removeEventListener("abort", cancel);
    }
  }

  if (start) begin();
  else rest(title);
  return box;
};

/** Show a line of progress. */
function showProgress(bar, words, { done_bytes: done, total_bytes: total, doing }) {
  if (total) {
    bar.max = total;
    bar.value = done;
  }
  const sizes = total ? `${formatBytes(done)} of ${formatBytes(total)}` : formatBytes(done);
  cordwood.replace(words, [printable(doing ?? "", 80), sizes].filter(Boolean).join(" · "));
}

/**
 * Return a slider over labelled positions, with buttons for one step back and forth.
 * `onChange(index)` follows each movement. `element.set(index)` moves it without `onChange`.
 */
cordwood.slider = function ({ labels, value, onChange, label }) {
  const last = labels.length - 1;
  const output = element("output.slider-label");
  const input = element("input", {
    type: "range",
    min: 0,
    max: last,
    "aria-label": label,
    oninput: () => move(Number(input.value)),
  });
  const back = cordwood.iconButton("previous", "Previous", () => move(Number(input.value) - 1));
  const forth = cordwood.iconButton("next", "Next", () => move(Number(input.value) + 1));
  const box = element("div.slider", element("span.slider-title", label), back, input, forth, output);

  /** Move to a position, and say so to the caller. */
  function move(index) {
    box.set(index);
    onChange(index);
  }

  box.set = (index) => {
    input.value = String(index);
    const text = printable(labels[index] ?? "", 80);
    cordwood.replace(output, text);
    input.setAttribute("aria-valuetext", text);
    back.disabled = index <= 0;
    forth.disabled = index >= last;
  };
  box.set(value);
  return box;
};
