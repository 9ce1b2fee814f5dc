// The names of the curves as switches: a click hides a curve or shows it.
export default {
  render({ model, el }) {
    const line = el.appendChild(document.createElement("div")), known = new Map();
    line.setAttribute("role", "group");
    line.setAttribute("aria-label", "Curves that are drawn");
    const made = (name) => {
      const button = document.createElement("button"), sample = document.createElement("s");
      button.type = "button";
      button.append(sample, document.createElement("span"));
      button.addEventListener("click", () => model.send({ toggle: name }));
      known.set(name, button);
      return button;
    };
    const draw = () => {
      const entries = model.get("entries");
      const shown = entries.map(({ name, title, ink, line: style, faint, off }) => {
        const button = known.get(name) ?? made(name), [sample, text] = button.children;
        Object.assign(sample.style, { borderColor: ink, borderTopStyle: style, opacity: faint ? 0.35 : 1 });
        text.textContent = title;
        button.title = `${off ? "Show" : "Hide"} ${title}`;
        button.setAttribute("aria-pressed", String(!off));
        return button;
      });
      for (const [name, button] of known) if (!shown.includes(button)) button.remove(), known.delete(name);
      shown.forEach((button, at) => {  // the focus stays where nothing moves
        if (line.children[at] !== button) line.insertBefore(button, line.children[at] ?? null);
      });
      line.className = model.get("wrap") ? "legend wrap" : "legend";
      line.hidden = !entries.length;
    };
    draw();
    model.on("change:entries", draw);
    return () => model.off("change:entries", draw);
  },
};
