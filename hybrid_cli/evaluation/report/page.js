// Draws every figure, and draws it again where the reader turns from light to dark.
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const night = window.matchMedia("(prefers-color-scheme: dark)");
  let drawn = [];

  async function draw() {
    drawn.forEach((figure) => figure.finalize());
    const scheme = night.matches ? "dark" : "light";
    const options = {
      actions: false, ast: true, config: content.config[scheme], mode: "vega-lite", renderer: "svg",
      tooltip: { theme: scheme },
    };
    const places = [...document.querySelectorAll("[data-figure]")];
    drawn = await Promise.all(places.map((place) =>
      vegaEmbed(place, { ...content.specs[place.dataset.figure], datasets: content.datasets }, options)));
    document.documentElement.dataset.drawn = scheme;
  }

  night.addEventListener("change", draw);
  draw();
})();
