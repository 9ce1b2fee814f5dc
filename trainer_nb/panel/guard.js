// What CSS cannot do: say hello to the kernel, and keep JupyterLab's one-key shortcuts off the panel.
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

export default {
  render({ model, el }) {
    el.style.display = "none";
    const stop = withRoot(el, (root) => {
      const key = (event) => { if (!passesOn(event)) event.stopPropagation(); };
      const seen = () => {
        model.set("hidden", document.hidden);
        model.save_changes();
      };
      root.addEventListener("keydown", key);
      document.addEventListener("visibilitychange", seen);
      model.set("drawn", model.get("drawn") + 1);
      seen();
      return () => {
        root.removeEventListener("keydown", key);
        document.removeEventListener("visibilitychange", seen);
      };
    });
    return () => stop && stop();
  },
};
