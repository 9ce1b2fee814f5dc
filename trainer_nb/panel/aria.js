// What a screen reader and the arrow keys need, put onto the widgets as a front end made them: roles, names, states, values in real units, and
// one polite line that says when the state of the run changes. It writes only what differs, so that its own writing comes to an end.
const write = (node, name, value) => { if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value); };
const DRAWN = ".tnb-head, .tnb-message .message, .js-plotly-plot, .tnb-said";  // again and again: nothing in it has a role of ours
const FOCUSABLE = "button, input, select, [tabindex='0']";

const PARTS = [  // selector, role, name
  [".tnb-controls", "group", "Run controls"], [".tnb-message", "group", "What happened last"],
  [".tnb-chooser:has(.cancel)", "group", "Rewind"], [".tnb-chooser:not(:has(.cancel))", "group", "Waits for approval"],
  [".tnb-plotbar", "group", "How the curves are drawn"], [".tnb-plotbar .segments", "group", "x-axis"],
  [".tnb-tunables", "group", "Tunables"], [".tnb-tabs", "tablist", "More about the run"], [".htop .segments", "group", "Order of the hooks"],
  [".tnb-layerbar .segments", "group", "What the map shows"], [".tnb-runlist", "group", "Runs"], [".lr-curve:has(svg)", "img", "Loss against learning rate"]];
const FIELDS = [  // boxes and lists that no text stands beside; those of a tunable have its name
  [".tnb-tunehead input", "Search the tunables"], [".order input", "Order: a whole number, low runs first"], [".tnb-more input", "How many epochs"],
  [".tnb-chooser select", "Saved states"], [".tnb-databar select", "Loader"], [".tnb-layerbar input", "Layers whose name contains"],
  [".tnb-runrow input", "Name of the run"], [".smooth :is(.noUi-handle, .ui-slider-handle)", "Smoothing: the mean over this number of steps"], [".breakpoints .tnb-entry input", "Pause when this becomes true"],
  [".tnb-journal .tnb-entry input", "Note for this step"], [".tnb-runspane .tnb-entry input", "Folders of runs to compare with"]];

class Aria {
  constructor(root) {
    this.root = root;
    this.id = `tnb-${Math.random().toString(36).slice(2, 10)}`;
    this.resting = new WeakMap();  // slider to what its box said, and where it stood then: it says the same, until it is moved
    this.named = new WeakSet();  // the controls that have their names
    this.known = null;  // the words that were said, or were there at first
    this.stale = false;  // more was drawn than head and curves
    this.dressing = this.speaking = this.opening = 0;  // timers
    this.line = root.appendChild(document.createElement("div"));
    this.line.className = "tnb-said";
    this.line.setAttribute("role", "status");
    this.line.setAttribute("aria-live", "polite");
    this.key = (event) => this.move(event);
    this.left = () => clearTimeout(this.opening);
    root.addEventListener("keydown", this.key);
    root.addEventListener("focusout", this.left);
    this.observer = new MutationObserver((changes) => {
      for (const { target, attributeName } of changes) if (attributeName === "aria-valuetext") this.slider(target);
      this.stale ||= changes.some(({ target }) => !target.closest(DRAWN) && !target.firstElementChild?.matches(".tnb-head"));
      this.dressing ||= setTimeout(() => { this.dressing = 0; this.stale ? this.dress() : this.listen(); }, 100);
    });
    this.observer.observe(root, { subtree: true, childList: true, attributes: true, attributeFilter: ["class", "title", "aria-valuetext"] });
    this.dress();
  }

  stop() {
    this.observer.disconnect();
    this.root.removeEventListener("keydown", this.key);
    this.root.removeEventListener("focusout", this.left);
    for (const timer of [this.dressing, this.speaking, this.opening]) clearTimeout(timer);
    this.line.remove();
  }

  all(selector) { return this.root.querySelectorAll(selector); }

  name(node, kind) {
    node.id ||= `${this.id}-${kind}-${(Aria.count = (Aria.count ?? 0) + 1)}`;
    return node.id;
  }

  dress() {
    this.stale = false;
    for (const [selector, role, name] of PARTS)
      for (const part of this.all(selector)) { write(part, "role", role); write(part, "aria-label", name); }
    this.rows();
    this.fields();
    this.buttons();
    this.tabs();
    for (const handle of this.all(".noUi-handle, .ui-slider-handle")) this.slider(handle);
    this.listen();
  }

  rows() {
    for (const row of this.all(".hrow:not(.heads)")) {
      write(row, "role", "group");
      write(row, "aria-label", `Hook ${row.querySelector(".hook b")?.title ?? ""}`);
    }
    for (const list of this.all(".tnb-runlist")) write(list, "tabindex", 0);  // may be wider than its place
  }

  // Boxes, lists, switches and sliders get their names once, when they come; a box whose text was refused says so.
  fields() {
    for (const part of this.all("input, select, .noUi-handle, .ui-slider-handle")) if (!this.named.has(part)) this.field(part);
    const wrong = new Set(this.all(":is(.tnb-row, .hrow, .tnb-runrow, .breakpoints).refused input[type=text]"));
    for (const part of this.all("[aria-invalid]")) if (!wrong.has(part)) part.removeAttribute("aria-invalid");
    for (const part of wrong) write(part, "aria-invalid", true);
  }

  field(part) {
    const row = part.closest(".tnb-row"), hint = row?.querySelector(".tnb-hint");
    const known = row?.querySelector(".nm")?.title.replace(/: .*/s, "") ?? FIELDS.find(([selector]) => part.matches(selector))?.[1];
    const beside = part.closest(".tnb-lrset .tnb-block")?.querySelector(".hint")?.textContent, label = part.labels?.[0]?.textContent.trim();
    const name = known ?? (beside && `Search for a rate: ${beside}`) ?? (label ? null : part.title || part.placeholder?.replace(/\u200b/g, ""));
    if (hint) write(part, "aria-describedby", this.name(hint, "hint"));
    if (name) write(part, "aria-label", name);
    if (part.matches(".switch input[type=checkbox]")) write(part, "role", "switch");
    if (name || label) this.named.add(part);
  }

  buttons() {
    for (const button of this.all("button[title]")) if (!/\w/.test(button.textContent)) write(button, "aria-label", button.title);
    for (const button of this.all(".widget-toggle-button, .jupyter-widget-toggle-button, .segments button"))
      write(button, "aria-pressed", button.classList.contains("mod-active"));
    for (const button of this.all("button.fold")) write(button, "aria-expanded", Boolean(button.querySelector(".fa-caret-down")));
  }

  tabs() {
    const tabs = [...this.all(".tnb-tabs .tab")], pane = this.root.querySelector(".tnb-pane");
    const open = tabs.find((tab) => tab.classList.contains("on")), held = tabs.find((tab) => tab === document.activeElement);
    for (const tab of tabs) {
      write(tab, "role", "tab");
      write(tab, "aria-selected", tab === open);
      write(tab, "tabindex", tab === (held ?? open) ? 0 : -1);  // one stop for Tab, the arrows go from one to the next
      if (pane) write(tab, "aria-controls", this.name(pane, "pane"));
    }
    if (!pane || !open) return;
    write(pane, "role", "tabpanel");
    write(pane, "aria-labelledby", this.name(open, "tab"));
    if (pane.querySelector(FOCUSABLE)) pane.removeAttribute("tabindex");
    else write(pane, "tabindex", 0);
  }

  // An arrow goes to the next tab, which opens when the focus rests on it: a pane that is only passed is not built.
  move(event) {
    const tab = event.target.closest?.(".tnb-tabs .tab");
    if (!tab || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const tabs = [...this.all(".tnb-tabs .tab")], at = tabs.indexOf(tab), count = tabs.length;
    const next = tabs[{ ArrowRight: (at + 1) % count, ArrowLeft: (at + count - 1) % count, Home: 0, End: count - 1 }[event.key]];
    if (!next) return;
    event.preventDefault();
    next.focus();
    for (const each of tabs) write(each, "tabindex", each === next ? 0 : -1);
    this.opening = setTimeout(() => { if (!next.classList.contains("on")) next.click(); }, 250);
  }

  // A slider says a logarithmic value itself, not its exponent, and what an empty box beside it says.
  slider(handle) {
    const target = handle.closest(".noUi-target, .ui-slider"), box = handle.closest(".tnb-row")?.querySelector("input[type=text]");
    const smooth = handle.closest(".smooth");
    let value = Number(target?.noUiSlider?.get(true));
    if (target?.matches(".ui-slider")) {  // ipywidgets 7: without any of it
      const share = parseFloat(handle.style.left) || 0;
      for (const [name, number] of [["role", "slider"], ["aria-valuemin", 0], ["aria-valuemax", 100], ["aria-valuenow", share]]) write(handle, name, number);
      value = smooth ? 0.03 * share : NaN;
    }
    if (smooth) return write(handle, "aria-valuetext", `${Math.round(10 ** value)} steps`);
    if (!box) return;
    const text = box.value || box.placeholder, before = this.resting.get(handle);
    if (before?.text !== text) this.resting.set(handle, { text, value });
    const real = handle.closest(".log") ? 10 ** value : value, words = Number.isInteger(real) ? real : Number(real.toPrecision(3));
    write(handle, "aria-valuetext", this.resting.get(handle).value === value || Number.isNaN(value) ? text : words);
  }

  // What is to be known of the state: the first sentence of the message line where the run stands still, else the state alone; an alert; why a
  // value was refused. A count that goes on is not in it.
  words() {
    const word = this.root.querySelector(".tnb-head .pill")?.textContent ?? "", line = this.root.querySelector(".tnb-message .message");
    const text = line?.textContent ?? "", sentence = (text.match(/^.*?\.(?=\s|$)/s)?.[0] ?? text).slice(0, 300);
    const still = word !== "Searching" && this.root.matches(".is-paused, .is-error, .is-finished");
    const refused = [...this.all(".refused .hint, .hint.refused")].map((hint) => hint.textContent);
    if (text.includes(" was refused: ") && !still) refused.push(sentence);
    if (line?.querySelector(".alert-name")) refused.push(text.split(":")[0]);
    return [still ? sentence : word, ...refused];
  }

  listen() {
    const run = this.root.querySelector(".tnb-head .name")?.textContent;
    write(this.root, "role", "region");
    write(this.root, "aria-label", run ? `Training run ${run}` : "Training run");
    const words = this.words();
    this.known ??= words;  // what is there at first is not said
    if (!this.known[0]) this.known = [words[0], ...this.known.slice(1)];
    if (words.some((each) => !this.known.includes(each))) this.speaking ||= setTimeout(() => { this.speaking = 0; this.speak(); }, 300);
    else this.known = words;
  }

  speak() {
    const words = this.words(), fresh = words.filter((each) => !this.known.includes(each));
    this.known = words;
    if (fresh.length) this.line.textContent = fresh.join(". ");
  }
}

