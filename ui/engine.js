// engine.js - what the engine is doing: tokens per second, queue, memory, models, training runs.
"use strict";

class EngineView {
  constructor(host, actions) {
    this.actions = actions;
    this.history = []; // of the last five minutes
    this.build(host);
  }

  build(host) {
    const tile = (name) => {
      const value = h("b", { class: "tile-value num" }, "–"), sub = h("span", { class: "muted num" });
      return { value, sub, el: h("div", { class: "tile" }, h("span", { class: "tile-name" }, name), value, sub) };
    };
    this.tiles = { train: tile("Training"), sample: tile("Sampling"), queue: tile("Queue"), memory: tile("Memory") };
    this.bar = h("div", { class: "meter", role: "meter", "aria-label": "Memory in use", "aria-valuemin": 0 });
    this.tiles.memory.el.append(this.bar);
    this.link = new ChartLink();
    const ago = (x) => (x >= 0 ? "now" : fmt(x) + " s");
    this.speed = new Chart({ title: "Tokens per second", link: this.link, xName: "", xFormat: ago, span: 60 });
    this.queue = new Chart({ title: "Queue", link: this.link, xName: "", xFormat: ago, span: 60, whole: true });
    this.about = h("div", { class: "block" });
    this.parts = h("section", { class: "block", "aria-label": "Memory by what it is for" });
    this.checks = h("section", { class: "block", "aria-label": "Checkpoints in the store" });
    this.note = h("div", {});
    this.body = h("div", { class: "content narrow", hidden: true },
      h("div", { class: "tiles" }, Object.values(this.tiles).map((t) => t.el)),
      h("div", { class: "chart-grid" }, this.speed.el, this.queue.el), this.about, this.parts, this.checks);
    fill(host, this.note, this.body);
    fill(this.note, h("div", { class: "skeleton", "aria-label": "Loading" }, h("div", {}), h("div", {})));
  }

  take(status) {
    const now = Date.now();
    this.history.push({ now, ...status });
    while (this.history.length > 1 && now - this.history[0].now > 300000) this.history.shift();
    this.status = status;
    if (!status.models?.length && !status.requests_total) {
      this.body.hidden = true;
      fill(this.note, emptyState("No engine runs behind this page", h("p", {}, "It shows log directories only. ",
        h("code", {}, "tinkc serve"), " shows runs, a playground and the engine together.")));
      return;
    }
    fill(this.note);
    this.body.hidden = false;
    this.show();
  }

  // Tokens per second over the last `ms`.
  rate(name, ms, at = this.history.length - 1) {
    const b = this.history[at];
    let i = at;
    while (i > 0 && b.now - this.history[i].now < ms) i--;
    const a = this.history[i];
    return b.now > a.now ? (b[name] - a[name]) / (b.now - a.now) * 1000 : 0;
  }

  show() {
    const s = this.status, t = this.tiles;
    const used = s.adapter_bytes + s.snapshot_bytes + s.result_bytes;
    const speed = (name) => fmt(Number(this.rate(name, 4000).toPrecision(3)));
    t.train.value.textContent = speed("trained_tokens_total");
    t.train.sub.textContent = `tokens/s; ${fmt(s.trained_tokens_total)} in all`;
    t.sample.value.textContent = speed("sampled_tokens_total");
    t.sample.sub.textContent = `tokens/s; ${fmt(s.sampled_tokens_total)} in all`;
    t.queue.value.textContent = fmt(s.queued_training_requests + s.samples_in_flight);
    t.queue.sub.textContent = `${s.queued_training_requests} training, ${s.samples_in_flight} samples, ${s.open_polls} polls`;
    t.memory.value.textContent = fmtBytes(used);
    t.memory.sub.textContent = "of " + fmtBytes(s.memory_bytes) + " for adapters, samplers, results";
    this.bar.style.setProperty("--part", Math.min(1, used / (s.memory_bytes || 1)));
    this.bar.setAttribute("aria-valuemax", s.memory_bytes);
    this.bar.setAttribute("aria-valuenow", used);
    if (s.memory?.resident) {
      t.memory.value.textContent = fmtBytes(s.memory.resident);
      t.memory.sub.textContent = `resident; ${fmtBytes(used)} of ${fmtBytes(s.memory_bytes)} for runs and samplers`;
    }
    this.curves();
    this.table();
    this.memoryParts(s.memory || {});
  }

  curves() {
    const last = this.history[this.history.length - 1].now;
    const x = this.history.map((p) => (p.now - last) / 1000);
    const rates = (name) => this.history.map((_, i) => this.rate(name, 3000, i));
    const line = (name, color, y, dash) => ({ name, color, dash, x, y });
    this.speed.set([line("training", palette[0], rates("trained_tokens_total")),
      line("sampling", palette[1], rates("sampled_tokens_total")), line("prompts", palette[2], rates("prefilled_tokens_total"))]);
    this.queue.set([line("training requests", palette[0], this.history.map((p) => p.queued_training_requests)),
      line("samples", palette[1], this.history.map((p) => p.samples_in_flight))]);
  }

  table() {
    const s = this.status, key = JSON.stringify([s.models, s.training_runs, s.sessions]);
    if (key === this.tableKey) return;
    this.tableKey = key;
    const awake = s.training_runs.filter((r) => r.in_memory).length;
    const d = s.device;
    fill(this.about, h("h2", {}, "Models and runs"),
      d?.name ? h("p", { title: d.reason || "" }, "Device: ", h("span", { class: "tag" }, d.name), h("span", { class: "muted" }, d.text || "")) : null,
      h("p", {}, "Models: ", s.models.map((m) => h("span", { class: "tag" }, m)), " ",
        h("span", { class: "muted" }, `${s.sessions} sessions, ${s.training_runs.length} training runs, ${awake} of them in memory`)),
      s.training_runs.length ? h("div", { class: "table-box" }, h("table", {},
        h("thead", {}, h("tr", {}, ["Training run", "Next request", "Weights"].map((c) => h("th", { scope: "col" }, c)))),
        h("tbody", {}, s.training_runs.slice(-50).reverse().map((r) => h("tr", {}, h("td", { class: "path" }, r.id),
          h("td", { class: "num" }, String(r.next_seq_id)), h("td", {}, r.in_memory ? "in memory" : "on disk")))))) : null);
    this.loadCheckpoints();
  }

  memoryParts(memory) {
    const parts = Object.entries(memory).filter(([name, n]) => n > 0 && !name.startsWith("resident")).sort((a, b) => b[1] - a[1]);
    const most = parts[0]?.[1] || 1;
    this.parts.hidden = !parts.length;
    fill(this.parts, h("h2", {}, "Memory"), h("dl", { class: "parts" }, parts.map(([name, n]) => [
      h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, h("span", { class: "num" }, fmtBytes(n)),
        h("span", { class: "meter", "aria-hidden": "true", vars: { "--part": String(n / most) } }))])));
  }

  async loadCheckpoints() {
    let list = [];
    try { list = (await this.actions.checkpoints()).checkpoints || []; }
    catch (e) { fill(this.checks, h("p", { class: "error-text" }, "The checkpoints could not be listed: " + e.message)); return; }
    this.checks.hidden = !list.length;
    fill(this.checks, h("h2", {}, "Checkpoints in the store"), h("div", { class: "table-box" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Path", "Kind", "Size", "Made", ""].map((c) => h("th", { scope: "col" }, c)))),
      h("tbody", {}, list.slice(0, 100).map((c) => this.checkpointRow(c))))));
  }

  checkpointRow(c) {
    const path = c.tinker_path || "", sampler = c.checkpoint_type === "sampler";
    return h("tr", {}, h("td", { class: "path" }, path), h("td", {}, sampler ? "sampling" : "training"),
      h("td", { class: "num" }, fmtBytes(c.size_bytes)), h("td", {}, c.time ? fmtAgo(Date.parse(c.time)) : ""),
      h("td", { class: "actions" },
        h("button", { class: "icon-button", type: "button", title: "Copy the path", "aria-label": "Copy the path " + path,
          onclick: (e) => copyText(path, e.currentTarget) }, icon(icons.copy)),
        sampler ? h("button", { class: "icon-button", type: "button", title: "Sample from it", "aria-label": "Sample from " + path,
          onclick: () => this.actions.chat(path) }, icon(icons.chat)) : null,
        h("button", { class: "icon-button", type: "button", title: "Download", "aria-label": "Download " + path,
          onclick: () => this.actions.download(path) }, icon(icons.download))));
  }
}
