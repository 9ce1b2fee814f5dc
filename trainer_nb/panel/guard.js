// What CSS cannot do: say hello to the kernel, keep JupyterLab's one-key shortcuts off the panel, keep the focus. aria.js stands before
// it in the same script.
function withRoot(el, then) {
  const root = el.closest(".tnb");
  if (root) return then(root);
  let stopped = false, stop = () => {};
  requestAnimationFrame(() => { if (!stopped) stop = withRoot(el, then); });
  return () => { stopped = true; stop(); };
}

function passesOn(event) {
  return event.ctrlKey || event.metaKey || event.altKey || event.key === "Escape" ||
    (event.shiftKey && event.key === "Enter");
}

// What is being typed stays: a value that comes from the kernel meanwhile is shown when the box is left, unless another was given.
const VALUE = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");

function keepDraft(box) {
  if (!box.matches?.("input[type=text]") || Object.hasOwn(box, "value")) return;
  let missed = null;
  Object.defineProperty(box, "value", { configurable: true, get: () => VALUE.get.call(box), set: (value) => { missed = value; } });
  const end = (event) => {
    box.removeEventListener("change", end);
    box.removeEventListener("blur", end);
    delete box.value;
    if (event.type === "blur" && missed !== null) box.value = missed;
  };
  box.addEventListener("change", end);
  box.addEventListener("blur", end);
}

// A control that is disabled or hidden while it has the focus gives it to the page, whose one-key shortcuts take the next key. The box around
// it takes the focus instead, where no key does anything, and gives it back when the control comes back.
function keepFocus(root) {
  let last = null, stand = null, frame = 0, left = null;  // left: what has lost the focus in this frame
  const active = () => root.getRootNode().activeElement;
  const gone = (part) => part.disabled || !part.isConnected || !part.getClientRects().length;
  const leave = () => {
    stand?.removeAttribute("tabindex");
    stand?.removeAttribute("data-tnb-stand");
    stand = null;
  };
  const look = () => {
    frame = 0;
    if (!last) return;
    const now = active();
    const nobody = !now || now === document.body;  // it was gone for a moment only: no event says so
    if (!gone(last) && (now === stand || (nobody && !left))) return last.focus({ preventScroll: true });
    if (!gone(last) || (root.contains(now) && now !== last)) return;
    const box = boxes.find((each) => root.contains(each) && !gone(each));
    if (!box || box === now) return;
    leave();
    stand = box;
    stand.tabIndex = -1;
    stand.dataset.tnbStand = "";
    stand.focus({ preventScroll: true });
  };
  let boxes = [];  // around the control, from the inside out: it may be taken out of the page
  const came = ({ target }) => {
    if (target === stand) return;
    leave();
    last = target;
    boxes = [];
    for (let box = target.parentElement; box && root.contains(box); box = box.parentElement) boxes.push(box);
  };
  const went = ({ target }) => {
    if (target === stand) { leave(); last = null; }
    else {
      left = target;
      requestAnimationFrame(() => {  // a person left it, unless it has gone by then, or was gone
        left = null;
        if (target !== last || active() === target || gone(target)) return;
        if (stand && active() === stand) target.focus({ preventScroll: true });
        else last = null;
      });
    }
  };
  const later = () => { if (last) frame ||= requestAnimationFrame(look); };
  const observer = new MutationObserver(later);
  observer.observe(root, { subtree: true, childList: true, attributes: true, attributeFilter: ["disabled", "style", "class"] });
  root.addEventListener("focusin", came);
  root.addEventListener("focusout", went);
  return () => {
    observer.disconnect();
    cancelAnimationFrame(frame);
    root.removeEventListener("focusin", came);
    root.removeEventListener("focusout", went);
  };
}

// The chooser of a state to go back to takes the focus when a key in the panel opens it, and gives it back when it closes.
function followChooser(root) {
  let open = false, from = null;
  const active = () => root.getRootNode().activeElement;
  const look = () => {
    const chooser = root.querySelector(".tnb-chooser .cancel")?.parentElement, now = active();
    if (!chooser || open === (chooser.style.display !== "none")) return;
    open = !open;
    const [list, go] = [chooser.querySelector("select"), chooser.querySelector("button:enabled")];
    if (open && root.contains(now)) {
      from = now;
      (list?.checkVisibility() ? list : go)?.focus({ preventScroll: true });
    } else if (!open && from && (chooser.contains(now) || now?.matches("body, [data-tnb-stand]"))) from.focus({ preventScroll: true });
  };
  const observer = new MutationObserver(look);
  observer.observe(root, { subtree: true, attributes: true, attributeFilter: ["style"] });
  return () => observer.disconnect();
}

// A page that was loaded again takes no updates of its outputs: the picture above the panel is put into the notebook from here, where the
// front end lets us.
const WIDGET = "application/vnd.jupyter.widget-view+json";
const html = (output) => [output.data?.["text/html"] ?? ""].flat().join("");

function keep(model) {
  const kept = model.get("kept"), cells = model.widget_manager?.context?.model?.cells;
  if (!kept["text/html"] || !cells) return;
  for (let cell = 0; cell < cells.length; cell++) {
    const outputs = cells.get(cell).outputs;
    for (let at = 1; at < (outputs?.length ?? 0); at++) {
      const picture = outputs.get(at - 1).toJSON();
      const ours = outputs.get(at).toJSON().data?.[WIDGET]?.model_id === model.get("root");
      if (ours && html(picture).includes("tnb-kept") && html(picture) !== kept["text/html"])
        outputs.set(at - 1, { ...picture, data: kept });
    }
  }
}

// The picture that stays without a kernel stands in the output above the panel, and is hidden as long as the panel is there. JupyterLab does
// it by a style of the picture's own; other front ends have other names for their outputs.
function hidePicture(root) {
  const follows = (a, b) => a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING;
  const picture = [...document.querySelectorAll(".tnb-kept")].filter((each) => follows(each, root)).pop();
  const between = [...document.querySelectorAll(".tnb")].some((each) => picture && follows(picture, each) && follows(each, root));
  if (!picture || between) return () => {};
  let output = root;  // of the panel, next to that of the picture, which is made anew now and then
  while (output.parentElement && !output.parentElement.contains(picture)) output = output.parentElement;
  if (!output.previousElementSibling?.contains(picture)) return () => {};
  if (output.previousElementSibling.querySelector(".cm-content, .CodeMirror")) return () => {};  // that is another cell
  output.dataset.tnbPanel = "";
  return () => delete output.dataset.tnbPanel;
}

export default {
  render({ model, el }) {
    el.style.display = "none";
    const stop = withRoot(el, (root) => {
      const key = (event) => {
        if (event.key === "Escape") root.querySelector(".tnb-chooser .cancel")?.click();  // nothing where it is not open
        if (!passesOn(event)) event.stopPropagation();
      };
      // Notebook takes keys on their way down, before the panel sees them; its shortcuts spare an element with this attribute.
      // The window is asked before the page.
      const early = (event) => {
        if (root.contains(event.target)) event.target.toggleAttribute("data-lm-suppress-shortcuts", !passesOn(event));
      };
      const seen = () => {
        model.set("hidden", document.hidden);
        model.save_changes();
      };
      const put = () => keep(model);
      const typed = (event) => keepDraft(event.target);
      const free = keepFocus(root), showPicture = hidePicture(root), back = followChooser(root), aria = new Aria(root);
      root.addEventListener("keydown", key);
      root.addEventListener("input", typed);
      window.addEventListener("keydown", early, true);
      document.addEventListener("visibilitychange", seen);
      model.on("change:kept", put);
      put();
      model.set("drawn", model.get("drawn") + 1);
      seen();
      return () => {
        for (const end of [free, showPicture, back]) end();
        aria.stop();
        root.removeEventListener("keydown", key);
        root.removeEventListener("input", typed);
        window.removeEventListener("keydown", early, true);
        document.removeEventListener("visibilitychange", seen);
        model.off("change:kept", put);
      };
    });
    return () => stop && stop();
  },
};
