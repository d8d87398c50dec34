"use strict";
// Elements of the document. Text enters it as text nodes only.
(function (cordwood) {
  const SVG = "http://www.w3.org/2000/svg";

  /**
   * Return an element with attributes and children.
   * A function under `on...` is a listener; false, null and undefined attributes are left out;
   * children that are no nodes become text.
   */
  cordwood.element = function (tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  };

  /** Return an SVG element with attributes and children. */
  cordwood.svg = function (tag, attributes = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  };

  /** Set the attributes of an element and append its children. */
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === undefined || value === null || value === false) continue;
      if (typeof value === "function") element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    cordwood.append(element, children);
    return element;
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
      const area = cordwood.element("textarea", { class: "off-screen", "aria-hidden": "true" });
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
        ? `Copied ${cordwood.printable(text, 60)}`
        : "The browser did not allow copying: select the text and copy it by hand.",
    );
  };

  /** Return a button that copies a text. */
  cordwood.copyButton = function (text, label = "Copy the key path") {
    return cordwood.element(
      "button",
      {
        class: "copy",
        type: "button",
        title: label,
        "aria-label": label,
        onclick: (event) => {
          event.stopPropagation();
          event.preventDefault();
          cordwood.copy(text);
          event.currentTarget.classList.add("copied");
          setTimeout((button) => button.classList.remove("copied"), 1200, event.currentTarget);
        },
      },
      cordwood.icon("copy"),
    );
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
    return cordwood.svg(
      "svg",
      { class: `icon icon-${name}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
      cordwood.svg("path", { d: ICONS[name] }),
    );
  };

  /** Return a key path with a button that copies the whole of it; the path links to `href`. */
  cordwood.keyPath = function (path, { href = null, limit = 200 } = {}) {
    const text = path === "" ? "(root)" : cordwood.printable(path, limit);
    return cordwood.element(
      "span",
      { class: "key-path" },
      href === null
        ? cordwood.element("code", {}, text)
        : cordwood.element("a", { href }, cordwood.element("code", {}, text)),
      cordwood.copyButton(path),
    );
  };

  /** Return a list of names and values; pairs whose value is null are left out. */
  cordwood.facts = function (pairs) {
    const list = cordwood.element("dl", { class: "facts" });
    for (const [name, value] of pairs) {
      if (value === null || value === undefined) continue;
      cordwood.append(
        list,
        cordwood.element(
          "div",
          {},
          cordwood.element("dt", {}, name),
          cordwood.element("dd", {}, value),
        ),
      );
    }
    return list;
  };

  /** Return a titled part of a view. */
  cordwood.panel = function (title, ...children) {
    return cordwood.element(
      "section",
      { class: "panel", "aria-label": title },
      cordwood.element("h2", {}, title),
      ...children,
    );
  };

  let announcement = null;
  let timer = 0;

  /** Show a short message at the foot of the page, and tell it to screen readers. */
  cordwood.announce = function (text) {
    if (!announcement) {
      announcement = cordwood.element("div", { class: "toast", role: "status" });
      document.body.append(announcement);
    }
    cordwood.replace(announcement, text);
    announcement.classList.add("shown");
    clearTimeout(timer);
    timer = setTimeout(() => announcement.classList.remove("shown"), 2500);
  };

  let tooltip = null;

  /** Show a tooltip (lines of text) beside a point of the window; null hides it. */
  cordwood.showTooltip = function (lines, x = 0, y = 0) {
    if (!tooltip) {
      tooltip = cordwood.element("div", { class: "tooltip", "aria-hidden": "true" });
      document.body.append(tooltip);
    }
    tooltip.hidden = lines === null;
    if (lines === null) return;
    cordwood.replace(tooltip, lines.map((line) => cordwood.element("div", {}, line)));
    const { width, height } = tooltip.getBoundingClientRect();
    const room = document.documentElement.clientWidth - width - 8;
    const below = y + 16 + height < window.innerHeight;
    tooltip.style.left = `${Math.max(8, Math.min(x + 12, room))}px`;
    tooltip.style.top = `${below ? y + 16 : Math.max(8, y - height - 12)}px`;
  };
})(globalThis.cordwood);
