/** The form to sign in, where the server has configured clients. */

import { field, h } from "./dom.js";

/**
 * @param {import("./page.js").Context} context
 * @param {boolean} isWrong  whether a name and a secret were refused
 * @returns {import("./page.js").View}
 */
export function loginPage(context, isWrong) {
  const name = h("input", { type: "text", name: "username", autocomplete: "username", required: true, value: context.link.name });
  const secret = h("input", { type: "password", name: "secret", autocomplete: "current-password", required: true });
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    context.link.signIn(name.value, secret.value);
  };
  const element = h(
    "section",
    { class: "page login" },
    h(
      "form",
      { class: "card", onsubmit: submit, "aria-label": "Sign in" },
      h("h1", {}, "Sign in"),
      h("p", { class: "muted" }, "This server has configured clients. The secret is kept until you close this tab."),
      isWrong && h("p", { class: "state bad", role: "alert" }, "No client has this name and secret."),
      field("Name", name),
      field("Secret", secret),
      h("div", { class: "buttons" }, h("button", { class: "primary" }, "Sign in")),
    ),
  );
  queueMicrotask(() => (name.value ? secret : name).focus());
  return { element };
}
