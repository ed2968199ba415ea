// Draws every chart, and redraws it when the color scheme changes.
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

  night.addEventListener("change", draw);
  draw();
})();
