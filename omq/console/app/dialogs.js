/** Dialogs and short messages. */

import { h } from "./dom.js";

/**
 * Ask for a confirmation.
 *
 * @param {{title: string, text: string, action: string, isDangerous?: boolean}} question
 * @returns {Promise<boolean>}
 */
export function confirmed({ title, text, action, isDangerous = true }) {
  return new Promise((resolve) => {
    const dialog = open(title, (close) => [
      h("p", {}, text),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", onclick: () => close() }, "Cancel"),
        h("button", { type: "button", class: isDangerous ? "danger" : "primary", "data-confirm": true, onclick: () => (resolve(true), close()) }, action),
      ),
    ]);
    dialog.addEventListener("close", () => resolve(false)); // a promise settles once
  });
}

/**
 * Show a dialog until it is closed.
 *
 * @param {string} title
 * @param {(close: () => void) => import("./dom.js").Child[]} content
 * @returns {HTMLDialogElement}
 */
export function open(title, content) {
  const id = `dialog-${++made}`;
  const dialog = h("dialog", { "aria-labelledby": id });
  const close = () => dialog.close();
  dialog.append(h("h2", { id }, title), ...content(close).filter(Boolean));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

let made = 0;

/** Close all dialogs: they ask about a page, or a topic, that is not shown any more. */
export function closeAll() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
}

/**
 * Say for some seconds what has happened.
 *
 * @param {string} text
 * @param {"good" | "bad"} [kind]
 */
export function toast(text, kind = "good") {
  const element = h("div", { class: `toast ${kind}`, role: "status" }, text);
  // Elements outside of an open dialog are behind it, and screen readers skip them.
  (document.querySelector("dialog[open]") ?? document.getElementById("toasts"))?.append(element);
  setTimeout(() => element.remove(), kind === "good" ? 4000 : 8000);
}

/**
 * Do something, and say why it failed if it does.
 *
 * @param {() => Promise<unknown>} action
 * @returns {Promise<boolean>} whether it succeeded
 */
export async function tried(action) {
  try {
    await action();
    return true;
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
    return false;
  }
}
