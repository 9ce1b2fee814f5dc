// ipywidgets sends a click at once, but holds a changed value back until the kernel has answered the one before: a click can come first. So the
// fields of a line are told with each click in it.
export default {
  render({ model, el }) {
    el.style.display = "none";
    return whenIn(el, ".tnb-fields", (line) => {
      const shown = (field) => field.matches("select") ? field.selectedOptions[0]?.textContent ?? null : field.value;
      const tell = ({ target }) => {
        if (target.closest("button")) model.send({ shown: [...line.querySelectorAll("input, select")].map(shown) });
      };
      line.addEventListener("click", tell, true);
      return () => line.removeEventListener("click", tell, true);
    });
  },
};
