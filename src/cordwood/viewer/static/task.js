"use strict";
// Work that the user starts, watches and may cancel.
(function (cordwood) {
  /**
   * Return an element with a button that starts `run(onProgress, signal)`, its progress and Cancel.
   * `start: true` starts at once; `again` is the button's text after a success (none: no button).
   * The work is cancelled when the view is left. `element.start()` presses the button.
   */
  cordwood.task = function ({ title, run, start = false, again = null }) {
    const { element } = cordwood;
    const box = element("div", { class: "task" });
    const viewSignal = cordwood.viewSignal;

    /** Show the button, and what the last attempt ended with. */
    function rest(label, note = null) {
      const button =
        label === null
          ? null
          : element("button", { type: "button", class: "button", onclick: begin }, label);
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
      const words = element("span", { class: "task-words" }, "Starting…");
      const button = element(
        "button",
        { type: "button", class: "button quiet", onclick: cancel },
        "Cancel",
      );
      cordwood.replace(box, bar, words, button);
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
          rest(title, element("span", { class: "muted", role: "status" }, "Cancelled."));
          box.dataset.state = "cancelled";
        }
      } finally {
        viewSignal?.removeEventListener("abort", cancel);
      }
    }

    box.start = begin;
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
    const sizes = total
      ? `${cordwood.formatBytes(done)} of ${cordwood.formatBytes(total)}`
      : cordwood.formatBytes(done);
    cordwood.replace(words, [cordwood.printable(doing ?? "", 80), sizes].filter(Boolean).join(" · "));
  }

  /**
   * Return a slider over labelled positions, with buttons for one step back and forth.
   * `onChange(index)` follows each movement. `element.set(index)` moves it without `onChange`.
   */
  cordwood.slider = function ({ values = null, labels, value = 0, onChange, label }) {
    const { element } = cordwood;
    const count = labels.length;
    const output = element("output", { class: "slider-label" });
    const input = element("input", {
      type: "range",
      min: 0,
      max: Math.max(0, count - 1),
      step: 1,
      "aria-label": label,
      oninput: () => move(Number(input.value)),
    });
    const back = element(
      "button",
      { type: "button", class: "icon-button", "aria-label": "Previous", onclick: () => move(at() - 1) },
      cordwood.icon("previous"),
    );
    const forth = element(
      "button",
      { type: "button", class: "icon-button", "aria-label": "Next", onclick: () => move(at() + 1) },
      cordwood.icon("next"),
    );
    const box = element(
      "div",
      { class: "slider" },
      element("span", { class: "slider-title" }, label),
      back,
      input,
      forth,
      output,
    );

    /** Return the position of the slider. */
    function at() {
      return Number(input.value);
    }

    /** Show a position. */
    function set(index) {
      input.value = String(index);
      const text = cordwood.printable(labels[index] ?? "", 80);
      cordwood.replace(output, text);
      input.setAttribute("aria-valuetext", text);
      back.disabled = index <= 0;
      forth.disabled = index >= count - 1;
    }

    /** Move to a position, and say so to the caller. */
    function move(index) {
      const position = Math.max(0, Math.min(count - 1, index));
      set(position);
      onChange?.(position, values?.[position]);
    }

    set(value);
    box.set = set;
    return box;
  };
})(globalThis.cordwood);
