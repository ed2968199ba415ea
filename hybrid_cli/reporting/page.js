// Draws every chart, redraws it when the color scheme changes, and saves it.
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const night = window.matchMedia("(prefers-color-scheme: dark)");
  let drawn = [];

  // A chart that fails shows its error; the others are drawn.
  async function drawInto(place, scheme) {
    const options = {
      actions: false, ast: true, config: content.config[scheme], mode: "vega-lite", renderer: "svg",
      tooltip: { theme: scheme },
    };
    try {
      return await vegaEmbed(place, { ...content.specs[place.dataset.figure], datasets: content.datasets }, options);
    } catch (error) {
      place.textContent = `This chart could not be drawn: ${error.message}`;
      console.error(`${place.dataset.figure}: ${error.message}`);
      return null;
    }
  }

  async function draw() {
    drawn.forEach((figure) => figure?.finalize());
    const scheme = night.matches ? "dark" : "light";
    const places = [...document.querySelectorAll("[data-figure]")];
    drawn = await Promise.all(places.map((place) => drawInto(place, scheme)));
    document.documentElement.dataset.drawn = scheme;
  }

  // The chart as an SVG file: in light colors, with the legend that is HTML on the page.
  async function save(name, width) {
    const spec = { ...content.specs[name], datasets: content.datasets };
    if (spec.width === "container") spec.width = width;
    const options = { actions: false, ast: true, config: content.config.saved, mode: "vega-lite", renderer: "none" };
    const { view } = await vegaEmbed(document.createElement("div"), spec, options);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await view.toSVG()], { type: "image/svg+xml" }));
    link.download = `${name}.svg`;
    link.click();
    URL.revokeObjectURL(link.href);
    view.finalize();
  }

  for (const button of document.querySelectorAll("[data-save]")) {
    const { width } = button.closest("figure").querySelector(".chart").getBoundingClientRect();
    button.addEventListener("click", () => save(button.dataset.save, Math.round(width)));
  }
  night.addEventListener("change", draw);
  draw();
})();
