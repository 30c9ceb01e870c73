// The drawing. Its places come with the page; here boxes get their text, and what is chosen lights up.

const BOX = { width: 188, height: 46 };
const MARGIN = 26;
let zoom = 1;
let boxes = new Map();

function drawing() { return state.view === 'folded' ? graph().folded : graph().full; }

/** The step that a box stands for now: one of the layer that is turned to. */
function standsFor(box) {
  if (state.view !== 'folded') return box;
  const at = layerOf(box);
  return at ? box + state.turns[at.place] * graph().layers[at.place].period : box;
}

function boxOf(step) {
  const at = state.view === 'folded' ? layerOf(step) : null;
  return at ? graph().layers[at.place].first + at.off : step;
}

function below(step) {
  const names = step.origins.join(', ');
  const who = { kernel: step.name, library: step.how, operator: '' }[step.kind];
  return [who, names].filter(Boolean).join(': ') || step.name;
}

function drawGraph() {
  const { layers, folded, full, steps } = graph();
  const options = [...(folded ? [['folded', 'Layers folded']] : []), ...(full ? [['full', `All ${many(steps.length, 'step')}`]] : [])];
  tabs(byId('views'), options, state.view, (view) => { state.view = view; drawGraph(); drawLegend(); lightGraph(); });
  const canvas = byId('canvas');
  const drawn = drawing();
  boxes = new Map();
  if (!drawn) {
    replace(canvas, el('p', { class: 'note' }, 'The artifact has no record of its steps: it was built by an older precast, or its blobs are gone.'));
    return;
  }
  const width = drawn.width + 2 * MARGIN;
  const height = drawn.height + 2 * MARGIN;
  const root = svg('svg', { viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}` });
  root.append(svg('defs', {}, svg('marker', { id: 'tip', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: 'userSpaceOnUse', orient: 'auto' },
    svg('path', { d: 'M0 0L8 4L0 8z', class: 'arrow-tip' }))));
  if (state.view === 'folded') for (const [place, layer] of layers.entries()) root.append(frame(place, layer, drawn.frames[place]));
  const arrows = svg('g', {});
  for (const [from, to, path] of drawn.arrows) arrows.append(svg('path', { class: path ? 'arrow' : 'arrow asked', d: path || straight(drawn.boxes[from], drawn.boxes[to]), 'marker-end': 'url(#tip)', 'data-from': from, 'data-to': to }));
  root.append(arrows);
  for (const [number, [x, y]] of Object.entries(drawn.boxes)) root.append(node(Number(number), x, y));
  replace(canvas, root);
  canvas.dataset.width = width;
  fit();
}

/** An arrow that has no path: those of a step with very many readers, which are seen only when it or the reader is chosen. */
function straight([x0, y0], [x1, y1]) {
  const [top, bottom] = [y0 + BOX.height / 2, y1 - BOX.height / 2];
  return `M${x0} ${top}C${x0} ${top + 40} ${x1} ${bottom - 40} ${x1} ${bottom}`;
}

function node(box, x, y) {
  const group = svg('g', { id: `box-${box}`, role: 'option', transform: `translate(${x - BOX.width / 2} ${y - BOX.height / 2})`, onclick: () => choose([standsFor(box)], 'graph') });
  boxes.set(box, group);
  label(box);
  return group;
}

function label(box) {
  const number = standsFor(box);
  const step = graph().steps[number];
  const group = boxes.get(box);
  const { parts, most } = state.shares;
  group.setAttribute('class', `node ${step.kind}`);
  replace(group,
    svg('title', {}, `Step ${number}: ${step.title}\n${step.origins.join(', ')}`),
    svg('rect', { class: 'box', width: BOX.width, height: BOX.height, rx: 7 }),
    svg('rect', { class: 'heat', x: 1, y: BOX.height - 4, height: 3, rx: 1.5, width: Math.max(2, (BOX.width - 2) * parts[number] / most) }),
    svg('text', { x: 10, y: 18 }, short(step.title, BOX.width - 18, '600 12.5px')),
    svg('text', { x: 10, y: 34, class: 'sub' }, short(below(step), BOX.width - 18, '11px')));
}

function frame(place, layer, [x, y, width, height]) {
  const text = `${layer.count} layers of ${many(layer.period, 'step')}`;
  const turn = svg('text', { x: 203, y: 4, class: 'turned' });
  const arrow = (by, at, sign, says) => svg('g', { class: 'turn', role: 'button', 'aria-label': says, onclick: () => turnTo(place, by) },
    svg('rect', { x: at - 14, y: -12, width: 28, height: 24 }), svg('text', { x: at, y: 5 }, sign));
  return svg('g', { class: 'frame', id: `frame-${place}` },
    svg('rect', { x, y, width, height, rx: 12 }),
    svg('g', { transform: `translate(${x + 8} ${y + 12})` },
      svg('rect', { class: 'pill', x: 0, y: -10, width: 256, height: 20, rx: 10 }),
      svg('text', { x: 11, y: 4 }, text), turn, arrow(-1, 162, '◂', 'The layer before'), arrow(1, 243, '▸', 'The next layer')));
}

function turnTo(place, by) {
  const layer = graph().layers[place];
  const turn = (state.turns[place] + by + layer.count) % layer.count;
  const at = state.step === null ? null : layerOf(state.step);
  if (at && at.place === place) choose([layer.first + turn * layer.period + at.off], 'turn');
  else { state.turns[place] = turn; lightGraph(); }
}

let shownTurns = '';
function lightGraph() {
  if (!drawing()) return;
  if (state.view === 'folded') {
    for (const [place, layer] of graph().layers.entries()) {
      byId(`frame-${place}`).querySelector('.turned').textContent = `${state.turns[place] + 1} of ${layer.count}`;
    }
    const turns = `${state.artifact}/${state.graph}/${state.turns}`;
    if (turns !== shownTurns) { for (const box of boxes.keys()) label(box); shownTurns = turns; }
  }
  const lit = new Set([...state.lit].map(boxOf));
  const chosen = state.step === null ? null : boxOf(state.step);
  for (const [box, group] of boxes) {
    group.classList.toggle('lit', lit.has(box));
    group.classList.toggle('chosen', box === chosen);
    group.setAttribute('aria-selected', String(box === chosen));
  }
  for (const arrow of byId('canvas').querySelectorAll('.arrow')) {
    arrow.classList.toggle('in', Number(arrow.dataset.to) === chosen);
    arrow.classList.toggle('out', Number(arrow.dataset.from) === chosen);
  }
  const canvas = byId('canvas');
  if (chosen === null) { canvas.removeAttribute('aria-activedescendant'); return; }
  canvas.setAttribute('aria-activedescendant', `box-${chosen}`);
  if (state.from !== 'graph') bring(chosen);
}

function bring(box) {
  const canvas = byId('canvas');
  const [x, y] = drawing().boxes[box];
  const at = { left: (x + MARGIN) * zoom - canvas.clientWidth / 2, top: (y + MARGIN) * zoom - canvas.clientHeight / 2 };
  canvas.scrollTo({ ...at, behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth' });
}

function setZoom(value, keep = true) {
  const canvas = byId('canvas');
  const root = canvas.querySelector('svg');
  if (!root) return;
  const centre = [(canvas.scrollLeft + canvas.clientWidth / 2) / zoom, (canvas.scrollTop + canvas.clientHeight / 2) / zoom];
  zoom = Math.min(2.5, Math.max(0.08, value));
  root.setAttribute('width', root.viewBox.baseVal.width * zoom);
  root.setAttribute('height', root.viewBox.baseVal.height * zoom);
  if (keep) canvas.scrollTo(centre[0] * zoom - canvas.clientWidth / 2, centre[1] * zoom - canvas.clientHeight / 2);
}

/** As wide as there is room, the first step in view; not smaller than `least`, which can be read. */
function fit(least = 0.7) {
  const canvas = byId('canvas');
  setZoom(Math.min(1, Math.max(least, canvas.clientWidth / canvas.dataset.width)), false);
  const [x] = drawing().boxes[Object.keys(drawing().boxes)[0]];
  canvas.scrollTo((x + MARGIN) * zoom - canvas.clientWidth / 2, 0);
}

function listenToCanvas() {
  const canvas = byId('canvas');
  let grabbed = null;
  canvas.addEventListener('pointerdown', (event) => {
    if (event.pointerType === 'mouse' && event.button === 0) grabbed = { x: event.clientX, y: event.clientY, left: canvas.scrollLeft, top: canvas.scrollTop };
  });
  addEventListener('pointermove', (event) => {
    if (!grabbed) return;
    if (Math.hypot(event.clientX - grabbed.x, event.clientY - grabbed.y) > 4) canvas.classList.add('moving');
    if (canvas.classList.contains('moving')) canvas.scrollTo({ left: grabbed.left + grabbed.x - event.clientX, top: grabbed.top + grabbed.y - event.clientY, behavior: 'instant' });
  });
  addEventListener('pointerup', () => { grabbed = null; setTimeout(() => canvas.classList.remove('moving')); });
  canvas.addEventListener('click', (event) => { if (canvas.classList.contains('moving')) event.stopPropagation(); }, true);
  canvas.addEventListener('wheel', (event) => { if (event.ctrlKey) { event.preventDefault(); setZoom(zoom * (event.deltaY < 0 ? 1.1 : 0.9)); } }, { passive: false });
  canvas.addEventListener('keydown', (event) => {
    const moves = { ArrowDown: () => walk(1), ArrowRight: () => walk(1), ArrowUp: () => walk(-1), ArrowLeft: () => walk(-1), Home: () => choose([0], 'keys'), End: () => choose([graph().steps.length - 1], 'keys'), '+': () => setZoom(zoom * 1.25), '-': () => setZoom(zoom / 1.25) };
    if (moves[event.key] && graph().steps.length) { event.preventDefault(); moves[event.key](); }
  });
  byId('zoom-in').addEventListener('click', () => setZoom(zoom * 1.25));
  byId('zoom-out').addEventListener('click', () => setZoom(zoom / 1.25));
  byId('zoom-fit').addEventListener('click', () => { if (drawing()) fit(0.08); });
}

function drawLegend() {
  const kinds = { kernel: 'generated loops', library: 'library call', operator: 'other operator' };
  const there = new Set(graph().steps.map((step) => step.kind));
  replace(byId('legend'), Object.entries(kinds).filter(([kind]) => there.has(kind)).map(([kind, text]) => el('span', {}, el('i', { class: `${kind} swatch` }), text)),
    drawing() && drawing().arrows.some((arrow) => !arrow[2]) ? el('span', {}, 'arrows of steps with very many readers show when chosen') : null,
    el('span', {}, state.shares.timed ? 'bar: share of the time' : state.shares.expected ? 'bar: share of the expected time' : 'bar: share of the bytes'));
}

when('graph', () => { shownTurns = ''; drawGraph(); drawLegend(); });
when('steps', lightGraph);
