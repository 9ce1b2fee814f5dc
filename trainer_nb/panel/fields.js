// ipywidgets sends a click at once, but holds a changed value back until the kernel has answered
// the one before: a click can come first. So the fields of a line are told with each click in it.
export default {
  render({ model, el }) {
    el.style.display = "none";
    return whenIn(el, ".tnb-fields", (line) => {
      const label = (list) => list.selectedOptions[0]?.textContent ?? null;
      const shown = (field) => field.matches("select") ? label(field) : field.value;
      const tell = ({ target }) => {
        if (!target.closest("button")) return;
        model.send({ shown: [...line.querySelectorAll("input, select")].map(shown) });
      };
      line.addEventListener("click", tell, true);
      return () => line.removeEventListener("click", tell, true);
    });
  },
};
