// dom.js - building elements, writing numbers, keeping choices. Every text goes in as text, never as
// markup: what runs and models say is not ours.
"use strict";

function h(tag, props, ...children) {
  const el = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (key === "class") el.className = value;
    else if (key === "vars") for (const [n, v] of Object.entries(value)) el.style.setProperty(n, v);
    else if (key in el && !key.includes("-") && key !== "list" && key !== "role") el[key] = value;
    else el.setAttribute(key, value === true ? "" : value);
  }
  el.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

function fill(el, ...children) {
  el.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

// Makes these the children, and leaves alone those that stand where they should: an element that is
// moved loses the focus.
function arrange(parent, nodes) {
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

const svgNs = "http://www.w3.org/2000/svg";
function icon(path) {
  const svg = document.createElementNS(svgNs, "svg");
  const p = document.createElementNS(svgNs, "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  p.setAttribute("d", path);
  svg.append(p);
  return svg;
}
const icons = {
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1.1 1.1M11.9 11.9 13 13M13 3l-1.1 1.1M4.1 11.9 3 13",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7Z",
  download: "M8 2v8M4.5 7 8 10.5 11.5 7M2.5 13.5h11",
  chat: "M2.5 3.5h11v7h-6l-3 2.5v-2.5h-2z",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  close: "M4 4l8 8M12 4l-8 8",
};

// ---- numbers and times ----

function fmt(v) {
  if (v === null || v === undefined || !Number.isFinite(v)) return "–";
  if (v === 0) return "0";
  const a = Math.abs(v);
  if (a >= 1e15 || a < 1e-3) {
    const [m, e] = v.toExponential(2).split("e");
    return String(parseFloat(m)) + "e" + Number(e);
  }
  if (Number.isInteger(v) && a < 1e5) return String(v);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (a >= unit) return parseFloat((v / (name === "k" ? 1e3 : unit)).toPrecision(3)) + name;
  return parseFloat(v.toPrecision(4)).toString();
}

function fmtBytes(n) {
  if (!Number.isFinite(n)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return (i && n < 100 ? n.toFixed(1) : Math.round(n)) + " " + units[i];
}

function fmtAgo(ms) {
  const s = Math.max(0, (Date.now() - ms) / 1000);
  if (s < 60) return "just now";
  if (s < 3600) return Math.floor(s / 60) + " min ago";
  if (s < 86400) return Math.floor(s / 3600) + " h ago";
  return Math.floor(s / 86400) + " d ago";
}

// ---- choices that outlive a reload ----

const memory = {
  get(name, standard) {
    try {
      const text = localStorage.getItem("tinkc." + name);
      return text === null ? standard : JSON.parse(text);
    } catch { return standard; }
  },
  set(name, value) {
    try { localStorage.setItem("tinkc." + name, JSON.stringify(value)); } catch { /* private window */ }
  },
};

// ---- light and dark ----

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setupTheme(button) {
  const root = document.documentElement;
  const show = () => {
    fill(button, icon(isDark() ? icons.sun : icons.moon));
    button.setAttribute("aria-label", isDark() ? "Use the light theme" : "Use the dark theme");
    button.title = button.getAttribute("aria-label");
    document.dispatchEvent(new Event("theme"));
  };
  const chosen = memory.get("theme", null);
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    memory.set("theme", root.dataset.theme);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

function announce(text) {
  const el = document.getElementById("announce");
  if (el) el.textContent = text;
}

function emptyState(title, ...more) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), more.map((m) =>
    typeof m === "string" ? h("p", {}, m) : m));
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.dataset.done = "copied";
    setTimeout(() => delete button.dataset.done, 1200);
    announce("copied");
  } catch { announce("copying is not allowed here"); }
}
