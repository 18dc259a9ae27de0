// chart.js - line charts on a canvas: ticks, smoothing, logarithmic scale, hover, zoom by dragging.
// Charts that share a `link` move their cursors and zooms together. Knows nothing of runs.
"use strict";

const palette = ["#3a7bd5", "#e0703a", "#2f9e77", "#b0539f", "#c39a1c", "#4aa3b8", "#d1495b", "#7a6ff0"];

// ---- pure helpers ----

// Steps of 1, 2 or 5 times a power of ten, about n of them between lo and hi.
function niceTicks(lo, hi, n) {
  const span = hi - lo;
  if (!(span > 0) || !Number.isFinite(span)) return [lo];
  const raw = span / Math.max(1, n), power = 10 ** Math.floor(Math.log10(raw));
  const part = raw / power, step = power * (part >= 7.07 ? 10 : part >= 3.16 ? 5 : part >= 1.41 ? 2 : 1);
  const ticks = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9 && ticks.length < 50; i++)
    ticks.push(Math.abs(i * step) < step * 1e-9 ? 0 : i * step);
  return ticks;
}

function logTicks(lo, hi, n) {
  const ticks = [], a = Math.floor(Math.log10(lo)), b = Math.ceil(Math.log10(hi));
  const decades = Math.log10(hi / lo);
  const factors = decades <= 1.2 ? [1, 2, 3, 5, 7] : decades <= 3 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / n));
  for (let e = a; e <= b; e += every)
    for (const f of factors) {
      const v = f * 10 ** e;
      if (v >= lo * 0.999 && v <= hi * 1.001) ticks.push(v);
    }
  return ticks.length > 1 ? ticks : [lo, hi];
}

// An exponential mean that starts at the first value and forgets it again (weight 0 = as it is).
function smooth(values, weight) {
  if (!(weight > 0)) return values;
  const out = new Float64Array(values.length);
  let mean = 0, norm = 0;
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i])) {
      mean = mean * weight + values[i] * (1 - weight);
      norm = norm * weight + (1 - weight);
    }
    out[i] = norm > 0 ? mean / norm : NaN;
  }
  return out;
}

const fewPoints = 40; // a curve of fewer is drawn as it is

// Index of the entry nearest to x in an ascending array.
function nearest(xs, x) {
  let lo = 0, hi = xs.length - 1;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (xs[mid] < x) lo = mid + 1; else hi = mid;
  }
  return lo > 0 && Math.abs(xs[lo - 1] - x) <= Math.abs(xs[lo] - x) ? lo - 1 : lo;
}

// ---- what charts share ----

class ChartLink {
  constructor() { this.charts = new Set(); this.x = null; this.range = null; }
  cursor(x) { if (x !== this.x) { this.x = x; for (const c of this.charts) c.drawCursor(); } }
  zoom(range) { this.range = range; for (const c of this.charts) c.draw(); }
}

class Chart {
  // options: title, link, log, smoothing, format, xName, xFormat, span (least width of the x axis),
  // whole (values are counts)
  constructor(options) {
    Object.assign(this, { log: false, smoothing: 0, format: fmt, xName: "step", link: new ChartLink() }, options);
    this.series = [];
    this.base = h("canvas", { class: "plot-base", "aria-hidden": "true" });
    this.over = h("canvas", { class: "plot-over", tabIndex: 0, role: "img" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.note = h("p", { class: "plot-note" });
    this.plot = h("div", { class: "plot" }, this.base, this.over, this.note, this.tip);
    this.legend = h("div", { class: "legend" });
    this.el = h("figure", { class: "chart" },
      h("figcaption", {}, h("span", { class: "chart-title" }, this.title), this.legend), this.plot);
    this.link.charts.add(this);
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.plot);
    this.listen();
  }

  remove() {
    this.watch.disconnect();
    this.link.charts.delete(this);
    this.el.remove();
  }

  // series: {name, color, dash, x, y}; x ascending.
  set(series) {
    this.series = series.map((s) => {
      const smoothed = this.smoothing > 0 && s.y.length >= fewPoints;
      return { ...s, smoothed, shown: smoothed ? smooth(s.y, this.smoothing) : s.y };
    });
    this.draw();
  }

  colors() {
    const style = getComputedStyle(this.plot);
    return { text: style.getPropertyValue("--muted"), grid: style.getPropertyValue("--grid"),
             line: style.getPropertyValue("--line"), back: style.getPropertyValue("--panel") };
  }

  // ---- scales ----

  ranges() {
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const s of this.series)
      if (s.x.length) { x0 = Math.min(x0, s.x[0]); x1 = Math.max(x1, s.x[s.x.length - 1]); }
    if (this.span) x0 = Math.min(x0, x1 - this.span);
    if (this.link.range) [x0, x1] = this.link.range;
    for (const s of this.series)
      for (let i = 0; i < s.x.length; i++) {
        const v = s.shown[i];
        if (s.x[i] < x0 || s.x[i] > x1 || !Number.isFinite(v) || (this.log && v <= 0)) continue;
        if (v < y0) y0 = v;
        if (v > y1) y1 = v;
      }
    if (!(y1 >= y0)) return null;
    if (x1 <= x0) { x0 -= 0.5; x1 += 0.5; }
    if (this.log) {
      if (y1 / y0 < 1.05) { y0 /= 1.5; y1 *= 1.5; }
      else { const pad = (y1 / y0) ** 0.05; y0 /= pad; y1 *= pad; }
    } else {
      const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
      const below = y0 >= 0 && y0 - pad < 0;
      y0 = below ? 0 : y0 - pad;
      y1 += pad;
    }
    return { x0, x1, y0, y1 };
  }

  layout() {
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    const r = this.ranges();
    if (!r || width < 60) return null;
    const yTicks = (this.log ? logTicks(r.y0, r.y1, 5) : niceTicks(r.y0, r.y1, Math.max(2, height / 46)))
      .filter((t) => !this.whole || Number.isInteger(t));
    const xTicks = niceTicks(r.x0, r.x1, Math.max(2, (width - 60) / 90))
      .filter((t) => this.xName !== "step" || Number.isInteger(t)); // there is no step 0.2
    const context = this.base.getContext("2d");
    context.font = this.font();
    const left = Math.ceil(Math.max(...yTicks.map((t) => context.measureText(this.format(t)).width))) + 10;
    const box = { left, right: width - 10, top: 8, bottom: height - 22 };
    const ly0 = this.log ? Math.log(r.y0) : r.y0, ly1 = this.log ? Math.log(r.y1) : r.y1;
    return { ...r, ...box, width, height, xTicks, yTicks,
      px: (x) => box.left + (x - r.x0) / (r.x1 - r.x0) * (box.right - box.left),
      py: (y) => box.bottom - ((this.log ? Math.log(y) : y) - ly0) / (ly1 - ly0) * (box.bottom - box.top),
      ix: (p) => r.x0 + (p - box.left) / (box.right - box.left) * (r.x1 - r.x0) };
  }

  font() { return "11px " + getComputedStyle(this.plot).fontFamily; }

  // ---- drawing ----

  size(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const w = this.plot.clientWidth, hgt = this.plot.clientHeight;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(hgt * ratio)) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(hgt * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, w, hgt);
    return context;
  }

  draw() {
    if (!this.plot.isConnected) return;
    this.drawLegend(); // first: a legend of two lines leaves less height for the plot
    const g = this.size(this.base), at = this.layout();
    this.at = at;
    this.note.textContent = at ? "" : this.series.some((s) => s.x.length) && this.log
      ? "no positive values to show on a logarithmic scale" : "no values yet";
    if (at) {
      this.drawAxes(g, at);
      g.save();
      g.beginPath();
      g.rect(at.left, at.top - 4, at.right - at.left + 4, at.bottom - at.top + 8);
      g.clip();
      for (const s of this.series) {
        if (s.smoothed) this.drawLine(g, at, s, s.y, 0.28);
        this.drawLine(g, at, s, s.shown, 1);
      }
      g.restore();
    }
    this.describe();
    this.drawCursor();
  }

  drawAxes(g, at) {
    const c = this.colors();
    g.font = this.font();
    g.lineWidth = 1;
    g.textBaseline = "middle";
    g.textAlign = "right";
    for (const t of at.yTicks) {
      const y = Math.round(at.py(t)) + 0.5;
      g.strokeStyle = c.grid;
      g.beginPath(); g.moveTo(at.left, y); g.lineTo(at.right, y); g.stroke();
      g.fillStyle = c.text;
      g.fillText(this.format(t), at.left - 6, y);
    }
    g.strokeStyle = c.line;
    g.beginPath(); g.moveTo(at.left, at.bottom + 0.5); g.lineTo(at.right, at.bottom + 0.5); g.stroke();
    g.textBaseline = "top";
    g.fillStyle = c.text;
    for (const t of at.xTicks) {
      const x = at.px(t);
      g.textAlign = x > at.right - 14 ? "right" : "center";
      g.fillText(this.formatX(t), Math.min(x, at.right), at.bottom + 7);
    }
  }

  formatX(x) { return this.xFormat ? this.xFormat(x) : fmt(x); }

  // At most two points for each column of pixels: the smallest and the largest, in their order.
  drawLine(g, at, s, y, alpha) {
    g.globalAlpha = alpha;
    g.strokeStyle = s.color;
    g.lineWidth = alpha < 1 ? 1 : 1.75;
    g.lineJoin = "round";
    g.setLineDash(s.dash && alpha === 1 ? [5, 4] : []);
    g.beginPath();
    let column = NaN, low = 0, high = 0, lowAt = 0, highAt = 0, count = 0, last = null, pen = false;
    const to = (px, py) => { if (pen) g.lineTo(px, py); else g.moveTo(px, py); pen = true; last = [px, py]; };
    const flush = () => {
      if (!count) return;
      const [a, b] = lowAt < highAt ? [low, high] : [high, low];
      to(column, a);
      if (count > 1 && a !== b) to(column, b);
      count = 0;
    };
    let drawn = 0;
    for (let i = 0; i < s.x.length; i++) {
      const v = y[i];
      if (!Number.isFinite(v) || (this.log && v <= 0)) continue;
      const px = at.px(s.x[i]), py = at.py(v), col = Math.round(px * 2) / 2;
      drawn++;
      if (col !== column) { flush(); column = col; low = high = py; lowAt = highAt = i; count = 1; continue; }
      if (py < low) { low = py; lowAt = i; }
      if (py > high) { high = py; highAt = i; }
      count++;
    }
    flush();
    g.stroke();
    g.setLineDash([]);
    if (last && alpha === 1 && (drawn === 1 || s.dot)) {
      g.fillStyle = s.color;
      g.beginPath(); g.arc(last[0], last[1], 3, 0, 7); g.fill();
    }
    g.globalAlpha = 1;
  }

  drawLegend() {
    const key = this.series.map((s) => s.name + s.color + s.dash).join("|");
    if (key === this.legendKey) return;
    this.legendKey = key;
    fill(this.legend, this.series.length > 8 ? [] : this.series.map((s) =>
      h("span", { class: "key" + (s.dash ? " dashed" : ""), vars: { "--c": s.color } }, s.name)));
  }

  lastOf(s) {
    for (let i = s.x.length - 1; i >= 0; i--)
      if (Number.isFinite(s.shown[i])) return { x: s.x[i], y: s.shown[i] };
    return null;
  }

  describe() {
    const parts = this.series.map((s) => {
      const l = this.lastOf(s);
      return l ? `${s.name} ${this.format(l.y)} at ${this.xName} ${this.formatX(l.x)}` : "";
    }).filter(Boolean);
    this.over.setAttribute("aria-label", `${this.title}: ${parts.join("; ") || "no values yet"}. ` +
      "Arrow keys move the cursor.");
  }

  // ---- the cursor ----

  drawCursor() {
    if (!this.plot.isConnected) return;
    const g = this.size(this.over), at = this.at, x = this.link.x, c = this.colors();
    this.tip.hidden = true;
    if (!at) return;
    if (this.drag) {
      g.fillStyle = c.text;
      g.globalAlpha = 0.14;
      g.fillRect(Math.min(this.drag.from, this.drag.to), at.top, Math.abs(this.drag.to - this.drag.from), at.bottom - at.top);
      g.globalAlpha = 1;
    }
    if (x === null || x < at.x0 || x > at.x1) return;
    const found = [];
    for (const s of this.series) {
      if (!s.x.length) continue;
      const i = nearest(s.x, x);
      const away = Math.abs(at.px(s.x[i]) - at.px(x));
      if (Number.isFinite(s.shown[i]) && away < 24 && !(this.log && s.shown[i] <= 0))
        found.push({ s, x: s.x[i], y: s.shown[i], raw: s.y[i] });
    }
    const px = Math.round(at.px(x)) + 0.5;
    g.strokeStyle = c.line;
    g.lineWidth = 1;
    g.beginPath(); g.moveTo(px, at.top); g.lineTo(px, at.bottom); g.stroke();
    for (const f of found) {
      g.fillStyle = c.back;
      g.strokeStyle = f.s.color;
      g.lineWidth = 2;
      g.beginPath(); g.arc(at.px(f.x), at.py(f.y), 3.5, 0, 7); g.fill(); g.stroke();
    }
    if (this.hovered && found.length) this.showTip(at, px, found);
  }

  showTip(at, px, found) {
    found.sort((a, b) => b.y - a.y);
    fill(this.tip, h("div", { class: "tip-x" }, `${this.xName} ${this.formatX(found[0].x)}`),
      found.slice(0, 12).map((f) => h("div", { class: "tip-row" },
        h("span", { class: "key" + (f.s.dash ? " dashed" : ""), vars: { "--c": f.s.color } }, f.s.name),
        h("b", {}, this.format(f.y)),
        h("span", { class: "muted" }, f.s.smoothed ? this.format(f.raw) : ""))));
    this.tip.hidden = false;
    const w = this.tip.offsetWidth, room = this.plot.clientWidth;
    const left = px + 12 + w > room ? px - 12 - w : px + 12;
    this.tip.style.left = Math.max(0, Math.min(left, room - w)) + "px";
    this.tip.style.top = at.top + 2 + "px";
  }

  listen() {
    const spot = (e) => e.clientX - this.over.getBoundingClientRect().left;
    this.over.addEventListener("pointermove", (e) => {
      if (!this.at) return;
      this.hovered = true;
      if (this.drag) this.drag.to = Math.max(this.at.left, Math.min(this.at.right, spot(e)));
      const x = this.at.ix(Math.max(this.at.left, Math.min(this.at.right, spot(e))));
      this.link.x = NaN;
      this.link.cursor(this.snap(x));
    });
    this.over.addEventListener("pointerleave", () => { this.hovered = false; this.drag = null; this.link.cursor(null); });
    this.over.addEventListener("pointerdown", (e) => {
      if (!this.at || e.pointerType === "touch") return;
      this.drag = { from: spot(e), to: spot(e) };
    });
    this.over.addEventListener("pointerup", () => {
      const d = this.drag;
      this.drag = null;
      if (d && Math.abs(d.to - d.from) > 6)
        this.link.zoom([this.at.ix(Math.min(d.from, d.to)), this.at.ix(Math.max(d.from, d.to))]);
    });
    this.over.addEventListener("dblclick", () => this.link.zoom(null));
    this.over.addEventListener("keydown", (e) => this.key(e));
    this.over.addEventListener("blur", () => { this.hovered = false; this.link.cursor(null); });
    document.addEventListener("theme", () => this.draw());
  }

  // The nearest x of any series.
  snap(x) {
    let best = x, away = Infinity;
    for (const s of this.series) {
      if (!s.x.length) continue;
      const v = s.x[nearest(s.x, x)];
      if (Math.abs(v - x) < away) { best = v; away = Math.abs(v - x); }
    }
    return best;
  }

  key(e) {
    const s = this.series.find((c) => c.x.length);
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (e.key === "Escape") { this.link.zoom(null); return; }
    if (!s || !(e.key in moves)) return;
    e.preventDefault();
    this.hovered = true;
    const from = this.link.x === null ? s.x.length - 1 : nearest(s.x, this.link.x) + moves[e.key];
    this.link.cursor(s.x[Math.max(0, Math.min(s.x.length - 1, from))]);
    announce(this.tip.innerText.replace(/\n/g, " "));
  }
}
