"use strict";
// Unpacks plotly.js, which is in this page, and draws the figures in the colours of the page. Nothing is fetched.
(async function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  if (Object.keys(figures).length === 0) return;
  const say = (text) => document.querySelectorAll(".plot").forEach((plot) => { plot.textContent = text; });
  if (!("DecompressionStream" in window)) {
    say("This browser is too old to draw here (it lacks DecompressionStream); the PNG files beside this page show the same.");
    return;
  }
  const packed = Uint8Array.from(atob(document.getElementById("library").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);

  const still = { displaylogo: false, displayModeBar: "hover", responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  function layoutOf(own) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"),
      automargin: true, exponentformat: "power" };
    return { ...own, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true, hovermode: "closest",
      font: { family: "system-ui, sans-serif", size: 13, color: colour("--ink") },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--ink") }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--quiet"), activecolor: colour("--ink") },
      margin: { l: 56, r: 12, t: 30, b: 46 },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.01, yanchor: "bottom", traceorder: "reversed" },
      xaxis: { ...axis, ...own.xaxis }, yaxis: { ...axis, ...own.yaxis } };
  }
  function draw() {
    for (const [name, panels] of Object.entries(figures)) {
      panels.forEach((panel, index) => {
        Plotly.react(document.getElementById(`plot-${name}-${index}`), panel.data, layoutOf(panel.layout), still);
      });
    }
  }
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.documentElement.dataset.drawn = "yes";
})().catch((error) => {
  console.error(error);
  document.querySelectorAll(".plot").forEach((plot) => {
    plot.textContent = "The figures could not be drawn here; the PNG files beside this page show the same.";
  });
});
