// What a notebook needs beside the panel: keys that stay in it, and the picture that stays without a kernel.

// Keys that the notebook itself needs; it would take all others for its one-key shortcuts.
const passesOn = (event) => event.ctrlKey || event.metaKey || event.altKey || event.key === "Escape" || (event.shiftKey && event.key === "Enter");

export function keepKeys(el) {
  const key = (event) => passesOn(event) || event.stopPropagation();
  // Notebook 7 takes keys on their way down, before the panel sees them; it spares an element with this attribute. The window is asked first.
  const early = (event) => {
    if (el.contains(event.target)) event.target.toggleAttribute("data-lm-suppress-shortcuts", !passesOn(event));
  };
  el.addEventListener("keydown", key);
  window.addEventListener("keydown", early, true);
  return () => {
    el.removeEventListener("keydown", key);
    window.removeEventListener("keydown", early, true);
  };
}

// What has the focus may go, as the buttons of a request that was answered: the panel has it then, and the notebook hears no key.
export function keepFocus(el) {
  let last = null;
  const focused = (event) => { last = event.target; };
  const left = ({ target }) => queueMicrotask(() => { if (last === target && target.isConnected) last = null; });
  const gone = new MutationObserver(() => {
    if (!last || last.isConnected) return;
    last = null;
    const panel = el.querySelector(".tnb");
    if (!panel || !document.activeElement?.contains(el)) return;  // somebody else has it
    panel.tabIndex = -1;
    panel.focus({ preventScroll: true });
  });
  el.addEventListener("focusin", focused);
  el.addEventListener("focusout", left);
  gone.observe(el, { childList: true, subtree: true });
  return () => {
    gone.disconnect();
    el.removeEventListener("focusin", focused);
    el.removeEventListener("focusout", left);
  };
}

// The picture is in the output below the panel's, and hidden by a style as long as the panel is there. Each front end has its own names for
// outputs, so this looks for the two that follow each other.
export function hidePicture(el) {
  const follows = (one, other) => one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING;
  const picture = [...document.querySelectorAll(".tnb-kept")].find((each) => follows(el, each));
  if (!picture) return () => {};
  let output = el;
  while (output.parentElement && !output.parentElement.contains(picture)) output = output.parentElement;
  const next = output.nextElementSibling;
  if (!next?.contains(picture) || next.querySelector(".cm-content, .CodeMirror")) return () => {};  // that is another cell
  output.dataset.tnbPanel = "";
  return () => delete output.dataset.tnbPanel;
}

// What JupyterLab and Notebook 7 let the panel see of their notebook: each output, with the id of the widget in it.
const WIDGET = "application/vnd.jupyter.widget-view+json";

function* outputsOf(model) {
  const cells = model.widget_manager?.context?.model?.cells;
  for (let cell = 0; cell < (cells?.length ?? 0); cell++) {
    const outputs = cells.get(cell).outputs;
    for (let at = 0; at < (outputs?.length ?? 0); at++) yield { outputs, at, id: outputs.get(at).toJSON().data?.[WIDGET]?.model_id };
  }
}

// A page that was loaded again takes no updates of its outputs: the picture is put into the notebook from here, where the front end lets us.
const html = (output) => [output.data?.["text/html"] ?? ""].flat().join("");

export function keepPicture(model, kept) {
  for (const { outputs, at, id } of outputsOf(model)) {
    const picture = id === model.get("own_id") && outputs.get(at + 1)?.toJSON();
    if (picture && html(picture).includes("tnb-kept") && html(picture) !== kept["text/html"]) outputs.set(at + 1, { ...picture, data: kept });
  }
}

// The manager of widgets looks for a model for two seconds. In a page that is too busy it says that there is none although the model has come
// meanwhile, and it stays at that: the output is shown again. Its last look comes soon after all models are there.
const LOOKS = [300, 1000, 5000, 20_000];  // milliseconds

export function showAgain(model) {
  const lost = () => [...document.querySelectorAll(".jupyter-widgets")].some((each) => each.textContent.endsWith("model not found"));
  const look = () => {
    if (lost()) for (const { outputs, at, id } of outputsOf(model)) if (id === model.get("own_id")) outputs.set(at, outputs.get(at).toJSON());
  };
  const timers = [], start = () => timers.push(...LOOKS.map((ms) => setTimeout(look, ms)));
  const manager = model.widget_manager;
  if (manager?.restoredStatus === false) manager.restored.connect(start);
  else start();
  return () => {
    timers.forEach(clearTimeout);
    manager?.restored?.disconnect(start);
  };
}
