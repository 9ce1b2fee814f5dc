// A text in code letters under its heading, with a button that copies it.
const COPY = "Copy as script";

export default {
  render({ model, el }) {
    const add = (parent, tag, names) => {
      const made = parent.appendChild(document.createElement(tag));
      made.className = names;
      return made;
    };
    const head = add(el, "div", "heading");
    head.append("As a script");
    add(head, "span", "fill");
    const button = add(head, "button", "jupyter-button copy");
    button.setAttribute("aria-live", "polite");
    const code = add(el, "pre", "code"), foot = add(el, "div", "quiet small");
    let timer = 0, whole = false;
    const show = () => {
      const lines = model.get("text").trimEnd().split("\n"), most = model.get("most");
      const cut = !whole && most && lines.length > most + 1;
      const last = lines.length - 3;  // the beginning, and the last lines: one wants to see how it ends
      if (cut) lines.splice(most - 4, last - most + 4, `# ... ${last - most + 4} more lines, copied too`);
      code.textContent = lines.join("\n");
      foot.textContent = model.get("foot");
    };
    const say = (word) => {
      button.textContent = word;
      clearTimeout(timer);
      if (word !== COPY) timer = setTimeout(() => say(COPY), 3000);
    };
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(model.get("text"));
        say("Copied");
      } catch (_) {  // no https, or not allowed: the text is selected, and the person copies it
        whole = true;
        show();
        getSelection().selectAllChildren(code);
        say("Press Ctrl+C");
      }
    };
    const changed = () => { whole = false; show(); };
    button.addEventListener("click", copy);
    const names = ["text", "foot", "most"].map((name) => `change:${name}`);
    for (const name of names) model.on(name, changed);
    say(COPY);
    show();
    return () => {
      for (const name of names) model.off(name, changed);
      clearTimeout(timer);
    };
  },
};
