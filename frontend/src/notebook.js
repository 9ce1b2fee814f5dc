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

// A page that was loaded again takes no updates of its outputs: the picture is put into the notebook from here, where the front end lets us.
const WIDGET = "application/vnd.jupyter.widget-view+json";
const html = (output) => [output.data?.["text/html"] ?? ""].flat().join("");

export function keepPicture(model, id, kept) {
  const cells = model.widget_manager?.context?.model?.cells;
  for (let cell = 0; cell < (cells?.length ?? 0); cell++) {
    const outputs = cells.get(cell).outputs;
    for (let at = 1; at < (outputs?.length ?? 0); at++) {
      const picture = outputs.get(at).toJSON(), ours = outputs.get(at - 1).toJSON().data?.[WIDGET]?.model_id === id;
      if (ours && html(picture).includes("tnb-kept") && html(picture) !== kept["text/html"]) outputs.set(at, { ...picture, data: kept });
    }
  }
}
