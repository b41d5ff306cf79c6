// The one dialog of the page: asks for a name, or for a yes.

const dialog = document.getElementById("dialog");
const input = document.getElementById("dialog-name");

/** Let a field take only what the server takes as the name of a user or a memory. */
export function takeName(field) {
  field.pattern = "[A-Za-z0-9._@+\\-]{1,63}";
  field.title = "1 to 63 letters, digits and . _ - @ +";
}

/**
 * Ask, and wait for the answer.
 * @param {{title: string, text: string, yes: string, name?: string, danger?: boolean}} question with `name` it asks
 *   for a name and proposes this one
 * @returns {Promise<string | null>} the name, "" for a yes without one, null when it was cancelled
 */
export function ask({ title, text, yes, name, danger = false }) {
  document.getElementById("dialog-title").textContent = title;
  document.getElementById("dialog-text").textContent = text;
  const confirm = document.getElementById("dialog-yes");
  confirm.textContent = yes;
  confirm.className = danger ? "danger" : "primary";
  const named = name !== undefined;
  document.getElementById("dialog-field").hidden = !named;
  input.value = name ?? "";
  input.required = input.autofocus = named;
  dialog.returnValue = "";
  dialog.showModal();
  if (named) input.select();
  return new Promise((resolve) => {
    const closed = () => resolve(dialog.returnValue ? input.value : null);
    dialog.addEventListener("close", closed, { once: true });
  });
}

takeName(input);
// Enter in the field means yes: without this, it would press the first button, which cancels.
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  document.getElementById("dialog-yes").click();
});
