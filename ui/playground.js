// playground.js - talk with a model; each token is coloured by how likely the model found it.
"use strict";

class Playground {
  // api: {get(path), post(path, body, signal)}; nameOf(path): what a checkpoint is called
  constructor(host, api, nameOf) {
    this.api = api;
    this.nameOf = nameOf;
    this.messages = [];
    this.models = [];
    this.build(host);
  }

  build(host) {
    const number = (name, label, value, attrs) => {
      const input = h("input", { type: "number", name, value, ...attrs });
      return [input, h("label", { class: "field" }, h("span", {}, label), input)];
    };
    this.model = h("select", { "aria-label": "Model" });
    this.system = h("textarea", { rows: 2, placeholder: "none" });
    const [temperature, t] = number("temperature", "Temperature", 0.7, { min: 0, max: 2, step: 0.1 });
    const [maxTokens, m] = number("max_tokens", "Longest answer, tokens", 256, { min: 1, max: 32768, step: 1 });
    const [topP, p] = number("top_p", "Top-p", 1, { min: 0.01, max: 1, step: 0.01 });
    const [seed, s] = number("seed", "Seed", "", { min: 0, step: 1, placeholder: "random" });
    Object.assign(this, { temperature, maxTokens, topP, seed });
    this.colour = h("input", { type: "checkbox", checked: true, onchange: () => this.log.classList.toggle("plain", !this.colour.checked) });
    this.log = h("div", { class: "talk", role: "log", "aria-live": "off", "aria-label": "Conversation", tabIndex: 0 });
    this.input = h("textarea", { rows: 3, placeholder: "Say something. Enter sends, Shift-Enter starts a line.", "aria-label": "Message",
      onkeydown: (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); this.send(); } } });
    this.go = h("button", { class: "button primary", type: "button", onclick: () => (this.stop ? this.stop.abort() : this.send()) }, "Send");
    this.clear = h("button", { class: "button", type: "button", onclick: () => { this.messages = []; this.stop?.abort(); this.show(); } }, "Clear");
    this.info = h("p", { class: "muted num talk-info" });
    this.panel = h("div", { class: "play" },
      h("div", { class: "play-main" }, this.log,
        h("div", { class: "compose" }, this.input, h("div", { class: "compose-row" }, this.info, this.clear, this.go))),
      h("aside", { class: "play-side", "aria-label": "Settings" },
        h("label", { class: "field" }, h("span", {}, "Model"), this.model),
        h("label", { class: "field" }, h("span", {}, "System message"), this.system), t, m, p, s,
        h("label", { class: "inline" }, this.colour, " Colour tokens by probability"),
        h("div", { class: "scale", "aria-hidden": "true" }, h("span", {}, "unlikely"), h("i", {}), h("span", {}, "certain"))));
    this.note = h("div", {});
    fill(host, this.note, this.panel);
    this.show();
  }

  unavailable(title, text) {
    this.panel.hidden = true;
    fill(this.note, emptyState(title, text));
  }

  async load(wanted) {
    try {
      const list = await this.api.get("/ui/v1/models");
      this.models = (list.data || []).map((m) => m.id);
    } catch (e) {
      this.unavailable("The models could not be listed", e.message);
      return;
    }
    if (!this.models.length) {
      this.unavailable("No model is loaded", "Start the server with one: tinkc serve FOLDER");
      return;
    }
    this.panel.hidden = false;
    fill(this.note);
    const before = wanted || this.model.value;
    const checkpoints = this.models.filter((m) => m.startsWith("tinker://"));
    const option = (id) => h("option", { value: id, title: id }, this.label(id));
    fill(this.model, this.models.filter((m) => !m.startsWith("tinker://")).map(option),
      checkpoints.length ? h("optgroup", { label: "Checkpoints" }, checkpoints.map(option)) : null);
    if (wanted && !this.models.includes(wanted)) this.info.textContent = "this checkpoint is not in the server's store";
    if (this.models.includes(before)) this.model.value = before;
  }

  label(id) {
    return this.nameOf(id) || id.replace(/^tinker:\/\/([^/]{8})[^/]*\/sampler_weights\//, "$1… / ");
  }

  // The runs that wrote checkpoints have become known.
  relabel() { for (const o of this.model.options) o.textContent = this.label(o.value); }

  show() {
    if (!this.messages.length)
      fill(this.log, emptyState("Nothing said yet", "Hover over a token, or move to it with Tab, to see what else the model considered."));
    else fill(this.log, this.messages.map((m) => m.el));
  }

  add(role, text) {
    const body = h("div", { class: "said pre" }, text);
    const el = h("article", { class: "turn " + role }, h("h3", {}, role === "user" ? "You" : "Model"), body);
    const message = { role, content: text, el, body };
    this.messages.push(message);
    this.show();
    return message;
  }

  request() {
    const said = this.messages.map(({ role, content }) => ({ role, content }));
    if (this.system.value.trim()) said.unshift({ role: "system", content: this.system.value });
    const body = { model: this.model.value, messages: said, stream: true, logprobs: true, top_logprobs: 5,
      stream_options: { include_usage: true }, temperature: Number(this.temperature.value), top_p: Number(this.topP.value),
      max_tokens: Number(this.maxTokens.value) };
    if (this.seed.value !== "") body.seed = Number(this.seed.value);
    return body;
  }

  async send() {
    const text = this.input.value;
    if (!text.trim() || this.stop) return;
    this.input.value = "";
    this.add("user", text);
    const body = this.request(), answer = this.add("assistant", "");
    this.stop = new AbortController();
    this.go.textContent = "Stop";
    answer.el.classList.add("busy");
    const began = performance.now();
    let tokens = 0, sum = 0;
    try {
      const response = await this.api.post("/ui/v1/chat/completions", body, this.stop.signal);
      await readEvents(response.body, (e) => {
        if (e.data === "[DONE]") return;
        const part = JSON.parse(e.data), choice = part.choices?.[0];
        if (part.error) throw new Error(part.error.message);
        const delta = choice?.delta?.content || "", list = choice?.logprobs?.content || [];
        answer.content += delta;
        for (const t of list) { tokens++; if (Number.isFinite(t.logprob)) sum += t.logprob; }
        answer.body.append(...(list.length ? list.map(tokenSpan) : delta ? [delta] : []));
        this.log.scrollTop = this.log.scrollHeight;
        const s = (performance.now() - began) / 1000;
        if (tokens) this.info.textContent = `${tokens} tokens, ${fmt(tokens / s)}/s, mean log-prob ${(sum / tokens).toFixed(2)}`;
      });
      announce("Answer: " + answer.content);
    } catch (e) {
      if (e.name !== "AbortError") answer.body.append(h("p", { class: "error-text" }, e.message));
      else answer.body.append(h("span", { class: "muted" }, " (stopped)"));
    }
    answer.el.classList.remove("busy");
    this.stop = null;
    this.go.textContent = "Send";
    this.input.focus();
  }
}

// The colour goes from red (unlikely) to none (certain), by probability.
function tokenSpan(t) {
  const p = Math.exp(Math.min(0, t.logprob ?? 0));
  const span = h("span", { class: "tok", tabIndex: 0, vars: { "--p": String(Math.round((1 - p) * 100) / 100) } }, t.token);
  const tip = () => {
    const others = (t.top_logprobs || []).slice(0, 5);
    const box = h("span", { class: "tok-tip", role: "tooltip" },
      h("span", { class: "tip-row" }, h("code", {}, JSON.stringify(t.token)), h("b", { class: "num" }, percent(t.logprob)),
        h("span", { class: "muted num" }, (t.logprob > -0.0005 ? 0 : t.logprob ?? 0).toFixed(3))),
      others.map((o) => h("span", { class: "tip-row" + (o.token === t.token ? " same" : "") },
        h("code", {}, JSON.stringify(o.token)), h("span", { class: "num" }, percent(o.logprob)))));
    span.append(box);
    const over = box.getBoundingClientRect().right - document.documentElement.clientWidth + 8;
    if (over > 0) box.style.left = -over + "px";
  };
  const gone = () => span.querySelector(".tok-tip")?.remove();
  span.addEventListener("pointerenter", () => { gone(); tip(); });
  span.addEventListener("focus", () => { gone(); tip(); });
  span.addEventListener("pointerleave", gone);
  span.addEventListener("blur", gone);
  return span;
}

function percent(logprob) {
  const p = Math.exp(logprob ?? -Infinity) * 100;
  return p >= 99.95 ? "100 %" : p >= 0.1 ? p.toFixed(1) + " %" : "< 0.1 %";
}

// Server-sent events from a response's body: {event, data} each.
async function readEvents(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", event = "", data = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) take({ event: event || "message", data: data.join("\n") });
        event = ""; data = [];
      } else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line.startsWith("event:")) event = line.slice(6).trim();
    }
  }
}
