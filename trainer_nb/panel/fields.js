// ipywidgets sends a click at once, but holds a changed value back until the kernel has answered
// the one before, and a kernel may read its messages in two threads: a click can come first. So a
// click on the button that acts on the fields of its line is sent from here, with what they show.
export default {
  render({ model, el }) {
    el.style.display = "none";
    return whenIn(el, ".tnb-fields", (line) => {
      const label = (list) => list.selectedOptions[0]?.textContent ?? null;
      const shown = (field) => field.matches("select") ? label(field) : field.value;
      const tell = (event) => {
        if (!event.target.closest(".tnb-go")) return;
        event.stopImmediatePropagation();  // the button's own message would be a second click
        model.send({ shown: [...line.querySelectorAll("input, select")].map(shown) });
      };
      line.addEventListener("click", tell, true);
      return () => line.removeEventListener("click", tell, true);
    });
  },
};
