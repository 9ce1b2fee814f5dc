// Which numbers the head shows: a button, and below it a list of all records with a box each. The kernel holds what is chosen.
const PIN = "M10 1.5 14.5 6 13.4 7.1 12.6 6.9 9.8 9.7 10 12.2 8.9 13.3 5.9 10.3 2.5 13.7 2.3 13.5 5.7 10.1 2.7 7.1 3.8 6 6.3 6.2 9.1 3.4 8.9 2.6Z";
const FEW = 12;  // records, without a search field

function make(tag, given = {}, ...parts) {
  const made = Object.assign(document.createElement(tag), given);
  made.append(...parts);
  return made;
}

export default {
  render({ model, el }) {
    const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    icon.setAttribute("viewBox", "0 0 16 16");
    icon.setAttribute("aria-hidden", "true");
    icon.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path")).setAttribute("d", PIN);
    const open = make("button", { type: "button", className: "open", title: "Choose the numbers of the head" }, icon);
    open.setAttribute("aria-label", open.title);
    const search = make("input", { type: "text", placeholder: "Search", className: "search" });
    search.setAttribute("aria-label", "Search the records");
    const usual = make("button", { type: "button", className: "usual", textContent: "Usual numbers" });
    const items = make("div", { className: "items" });
    const list = make("div", { className: "list", hidden: true }, make("div", { className: "top" }, search, usual), items);
    list.setAttribute("role", "group");
    list.setAttribute("aria-label", "Numbers of the head");
    const boxes = new Map();  // name to the label with its box

    const turn = (on) => {
      list.hidden = !on;
      open.setAttribute("aria-expanded", String(on));
      if (on) (search.hidden ? items.querySelector("input") : search)?.focus();
    };
    const pinned = () => model.get("shown");
    const find = () => {
      const words = search.value.trim().toLowerCase();
      for (const [name, label] of boxes) label.hidden = !name.toLowerCase().includes(words);
    };
    const add = (name) => {
      const box = make("input", { type: "checkbox" });
      box.addEventListener("change", () => {
        const others = pinned().filter((each) => each !== name);
        model.send({ pin: box.checked ? [...others, name] : others });
      });
      const label = make("label", { title: name }, box, make("span", { textContent: name }));
      boxes.set(name, label);
      items.append(label);
    };
    const draw = () => {
      const names = model.get("names"), shown = new Set(pinned());
      for (const [name, label] of boxes) if (!names.includes(name)) { label.remove(); boxes.delete(name); }
      for (const name of names) if (!boxes.has(name)) add(name);
      for (const [name, label] of boxes) label.querySelector("input").checked = shown.has(name);
      search.hidden = boxes.size <= FEW;
      usual.disabled = !model.get("chosen");
      find();
    };
    open.addEventListener("click", () => turn(list.hidden));
    usual.addEventListener("click", () => model.send({ pin: null }));
    search.addEventListener("input", find);
    const key = (event) => {
      if (event.key === "Escape" && !list.hidden) { turn(false); open.focus(); }
    };
    const away = (event) => { if (!list.hidden && !event.composedPath().includes(el)) turn(false); };
    el.addEventListener("keydown", key);
    document.addEventListener("pointerdown", away);
    const traits = ["names", "shown", "chosen"];
    for (const each of traits) model.on(`change:${each}`, draw);
    turn(false);
    draw();
    el.append(open, list);
    return () => {
      document.removeEventListener("pointerdown", away);
      for (const each of traits) model.off(`change:${each}`, draw);
    };
  },
};
