// What is chosen: an artifact, one of its graphs, and steps of it. Every part of the page draws itself from this, and none knows another.

const state = { artifact: 0, graph: 0, step: null, lit: new Set(), view: 'folded', from: '', turns: [] };
const listeners = { artifact: [], graph: [], steps: [] };
const artifact = () => DATA[state.artifact];
const graph = () => artifact().graphs[state.graph];
const when = (what, listener) => listeners[what].push(listener);
const tell = (what) => listeners[what].forEach((listener) => listener());

function chooseArtifact(number) {
  state.artifact = number;
  tell('artifact');
  chooseGraph(0);
}

function chooseGraph(number) {
  Object.assign(state, { graph: number, step: null, lit: new Set(), from: '' });
  const { layers, folded, steps } = graph();
  state.turns = layers.map(() => 0);
  state.view = folded ? 'folded' : 'full';
  state.shares = shares(steps);
  tell('graph');
  tell('steps');
  remember();
}

/** Light up `steps`; the first, or `step`, is the one that is told about. `from`: the part of the page that was clicked. */
function choose(steps, from, step = steps[0]) {
  if (step === undefined) return;
  Object.assign(state, { step, lit: new Set(steps), from });
  graph().layers.forEach((layer, place) => {
    const turn = Math.floor((step - layer.first) / layer.period);
    if (turn >= 0 && turn < layer.count) state.turns[place] = turn;
  });
  tell('steps');
  remember();
}

function clear() {
  Object.assign(state, { step: null, lit: new Set(), from: '' });
  tell('steps');
  remember();
}

function walk(by) {
  const count = graph().steps.length;
  if (count) choose([state.step === null ? (by > 0 ? 0 : count - 1) : Math.min(count - 1, Math.max(0, state.step + by))], 'keys');
}

/** The part of the whole that each step is: of the time that was measured, or else is to be expected, or else of the bytes. */
function shares(steps) {
  const timed = steps.some((step) => step.seconds !== undefined);
  const expected = steps.some((step) => step.predicted !== undefined);
  const values = steps.map((step) => (timed ? step.seconds : expected ? step.predicted : step.bytes));
  const total = sum(values) || 1;
  const parts = values.map((value) => value / total);
  return { timed, expected, parts, most: Math.max(...parts, 1e-12) };
}

/** For each step, the layer that it is in and its place there; null outside of layers. */
function layerOf(step) {
  for (const [place, layer] of graph().layers.entries()) {
    const off = step - layer.first;
    if (off >= 0 && off < layer.period * layer.count) return { place, turn: Math.floor(off / layer.period), off: off % layer.period };
  }
  return null;
}

function remember() {
  const parts = [artifact().id.slice(0, 12), graph().role, ...(state.step === null ? [] : [state.step])];
  if (state.step !== null || location.hash.includes('/')) history.replaceState(null, '', `#${parts.join('/')}`);
}

function recall() {
  const [id, role, step] = decodeURIComponent(location.hash.slice(1)).split('/');
  const number = DATA.findIndex((item) => role && item.id.startsWith(id));
  chooseArtifact(Math.max(number, 0));
  if (number < 0) return;
  const place = artifact().graphs.findIndex((item) => item.role === role);
  if (place > 0) chooseGraph(place);
  if (/^\d+$/.test(step || '') && Number(step) < graph().steps.length) choose([Number(step)], 'link');
}
