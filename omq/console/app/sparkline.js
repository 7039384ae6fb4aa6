/** Small charts of the last minute. */

import { h } from "./dom.js";

const WIDTH = 60;
const HEIGHT = 20;

/** Make an empty chart; `draw` fills it. It is decoration: the number stands beside it. */
export function sparkline() {
  return h(
    "svg:svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    h("svg:path", { class: "area" }),
    h("svg:path", { class: "line", "vector-effect": "non-scaling-stroke" }),
  );
}

/**
 * @param {SVGElement} chart
 * @param {Float32Array} values
 */
export function draw(chart, values) {
  const most = Math.max(...values);
  const [area, line] = chart.children;
  if (!most) {
    area.removeAttribute("d");
    line.removeAttribute("d");
    return;
  }
  const step = WIDTH / (values.length - 1);
  const points = Array.from(values, (value, at) => `${(at * step).toFixed(1)},${(HEIGHT - 1 - (value / most) * (HEIGHT - 2)).toFixed(1)}`);
  line.setAttribute("d", `M${points.join("L")}`);
  area.setAttribute("d", `M0,${HEIGHT}L${points.join("L")}L${WIDTH},${HEIGHT}Z`);
}
