// Elements and numbers. Text from the artifact reaches the page through `textContent` only, so that none of it is ever markup.

const DATA = JSON.parse(document.getElementById('data').textContent);
const SVG = document.querySelector('svg').namespaceURI;
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === '') continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const replace = (node, ...children) => { node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== '')); return node; };

function scaled(value, units, base) {
  let place = 0;
  while (value >= base && place < units.length - 1) { value /= base; place += 1; }
  return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${units[place]}`.trim();
}
const bytes = (count) => scaled(count, ['B', 'kB', 'MB', 'GB', 'TB'], 1000);
const operations = (count) => scaled(count, ['', 'k', 'M', 'G', 'T', 'P'], 1000);
const many = (count, noun) => `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;
const percent = (part) => (part >= 0.0995 ? `${Math.round(part * 100)}%` : part >= 0.001 ? `${(part * 100).toFixed(1)}%` : part > 0 ? '<0.1%' : '0%');
function seconds(value) {
  if (value >= 1) return `${value.toPrecision(3)} s`;
  if (value >= 1e-3) return `${(value * 1e3).toPrecision(3)} ms`;
  return value >= 1e-6 ? `${(value * 1e6).toPrecision(3)} µs` : `${Math.round(value * 1e9)} ns`;
}
/** What the expected time of a step goes into, for people. */
const LIMITS = { memory: 'to move its bytes', compute: 'to compute', call: 'to be called' };
/** Who computes a library call, for people. */
const LIBRARIES = { aten: 'ATen', onednn: 'oneDNN', own: 'our product for few rows', generated: 'generated code', winograd: 'our Winograd convolution', flash: 'flash attention', efficient: 'memory-efficient attention', parts: 'oneDNN, in parts', linear: 'oneDNN, packed' };
const library = (how) => LIBRARIES[how] || how;

const pen = document.createElement('canvas').getContext('2d');
/** The beginning of `text` that has room in `width` pixels. */
function short(text, width, font) {
  pen.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  if (pen.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle; else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}
const sum = (values) => values.reduce((total, value) => total + value, 0);

function tabs(place, options, chosen, choose) {
  replace(place, options.length < 2 ? [] : options.map(([value, label]) =>
    el('button', { type: 'button', 'aria-pressed': String(value === chosen), onclick: () => choose(value) }, label)));
}

/** Plain data as nested lists of names and values. */
function tree(value) {
  if (value === null || value === undefined || typeof value !== 'object') return document.createTextNode(String(value));
  if (Array.isArray(value)) {
    if (value.every((item) => item === null || typeof item !== 'object')) return document.createTextNode(value.join(', ') || 'none');
    return el('ul', { class: 'plain' }, value.map((item) => el('li', {}, tree(item))));
  }
  const entries = Object.entries(value);
  if (!entries.length) return document.createTextNode('none');
  return el('dl', {}, entries.flatMap(([name, item]) => {
    const deep = item !== null && typeof item === 'object' && !Array.isArray(item) && Object.keys(item).length > 0;
    return deep ? [el('dt', {}, name), el('dd', {}), tree(item)] : [el('dt', {}, name), el('dd', {}, tree(item))];
  }));
}
/** Equal texts once, with how often they come. */
function counted(texts) {
  const found = new Map();
  for (const text of texts) found.set(text, (found.get(text) || 0) + 1);
  return el('table', {}, el('tbody', {}, [...found].map(([text, count]) => el('tr', {}, el('td', {}, text), el('td', {}, count > 1 ? `×${count}` : '')))));
}
/** Records of equal fields as rows; null where they are no such records. */
function rowsOfRecords(records) {
  const entries = Object.entries(records);
  const fields = [...new Set(entries.flatMap(([, record]) => (record && typeof record === 'object' ? Object.keys(record) : [])))];
  if (!fields.length) return null;
  return el('table', { class: 'records' }, el('thead', {}, el('tr', {}, el('th', {}), fields.map((field) => el('th', { class: 'num' }, field)))),
    el('tbody', {}, entries.map(([name, record]) => el('tr', {}, el('td', {}, name), fields.map((field) => el('td', { class: 'num' }, (record || {})[field] ?? '–'))))));
}
const box = (title, ...children) => el('div', { class: 'panel' }, el('h3', {}, title), el('div', { class: 'body', tabindex: 0 }, children));
