// The three texts beside the drawing: the chosen step in numbers, the user's lines, and the code that was generated from them.

let codeView = 'functions';
let opened = new Set();

function stepButton(number, text) {
  return el('button', { type: 'button', class: 'link', onclick: () => choose([number], 'link') }, text === undefined ? `step ${number}` : text);
}

/** Which step wrote a buffer last before `number`. */
function writerOf(name, number) {
  for (let at = number - 1; at >= 0; at -= 1) if (graph().steps[at].written.some(([own]) => own === name)) return at;
  return null;
}

function showStep() {
  const place = byId('step');
  const { steps, role } = graph();
  if (state.step === null) {
    const count = (kind) => steps.filter((step) => step.kind === kind).length;
    const parts = [['kernel', 'kernel'], ['library', 'library call'], ['operator', 'other operator']].filter(([kind]) => count(kind)).map(([kind, noun]) => many(count(kind), noun));
    replace(place, el('div', { class: 'kind dim' }, `The ${role} graph`), el('h3', {}, parts.join(', ') || 'No steps are known'),
      el('p', { class: 'dim' }, steps.length ? 'They run in this order, from the top down. Choose one to see its lines and its code.' : ''));
    return;
  }
  const step = steps[state.step];
  const kinds = { kernel: `Generated loops, ${step.name}`, library: `Library call, by ${library(step.how)}`, operator: 'Operator of torch, or of your own' };
  const figures = [
    ['moves', bytes(step.bytes)],
    ...(step.operations ? [['computes', `${operations(step.operations)} operations`]] : []),
    ...(step.operations && step.bytes ? [['intensity', `${(step.operations / step.bytes).toPrecision(2)} per byte`]] : []),
    ...(step.predicted !== undefined ? [['expected', `${seconds(step.predicted)}, mostly ${LIMITS[step.limit]}`]] : []),
    ...(step.seconds !== undefined ? [['takes', `${seconds(step.seconds)} (${percent(state.shares.parts[state.step])})`], ['reaches', `${percent(step.least / step.seconds)} of the roofline, bound by ${step.bound}`]] : []),
  ];
  const others = state.lit.size > 1 ? el('p', { class: 'dim' }, `One of ${state.lit.size} steps that light up.`) : null;
  replace(place,
    el('div', { class: 'walk' }, el('button', { type: 'button', 'aria-label': 'The step before', onclick: () => walk(-1) }, '←'), el('button', { type: 'button', 'aria-label': 'The next step', onclick: () => walk(1) }, '→'), el('button', { type: 'button', 'aria-label': 'Choose nothing', onclick: clear }, '×')),
    el('div', { class: `kind ${step.kind}` }, `Step ${state.step} of ${steps.length} · ${kinds[step.kind]}`),
    el('h3', {}, step.title),
    el('div', { class: 'figures' }, figures.map(([name, value]) => el('span', {}, `${name} `, el('b', {}, value)))),
    others,
    el('div', { class: 'io' }, 'reads ', step.read.map(([name, size]) => buffer(name, size, writerOf(name, state.step))), ' · writes ', step.written.map(([name, size]) => buffer(name, size, null))),
    el('div', { class: 'io' }, `fuses ${step.origins.join(', ') || 'nothing'}`));
}

function buffer(name, size, writer) {
  const found = graph().memory.buffers.find((own) => own[0] === name);
  const shape = found ? found[6] : graph().memory.shapes[name] || '';
  const text = `${name} ${shape || bytes(size)}`;
  return writer === null ? el('span', {}, `${text}  `) : stepButton(writer, text);
}

function drawSource() {
  const { files, steps, sources } = graph();
  const users = sources.map(() => []);
  steps.forEach((step, number) => step.sources.forEach((source) => users[source].push(number)));
  byId('source-count').textContent = sources.length ? `${many(sources.length, 'line')} of ${many(files.length, 'file')}` : '';
  const out = [];
  for (const file of files) {
    out.push(el('div', { class: 'file' }, file.name));
    let before = null;
    for (const [number, text, source] of file.rows) {
      if (before !== null && number > before + 1) out.push(el('div', { class: 'line gap' }, el('span', { class: 'at' }, '⋮')));
      before = number;
      const cells = [el('span', { class: 'at' }, number || '?'), el('span', { class: 'text', title: text }, text || ' ')];
      if (source === null) { out.push(el('div', { class: 'line around' }, cells)); continue; }
      const share = percent(sum(users[source].map((step) => state.shares.parts[step] / steps[step].sources.length)));
      cells.push(el('span', { class: 'share' }, `${many(users[source].length, 'step')}, ${share}`));
      out.push(el('button', { type: 'button', class: 'line', 'data-source': source, onclick: () => choose(users[source], 'source', next(users[source])) }, cells));
    }
  }
  replace(byId('source'), out.length ? out : el('p', { class: 'note' }, 'The artifact does not say which lines its steps come from.'));
}

/** The first of these steps, or the one after the chosen one: clicking a line again goes through its steps. */
function next(steps) {
  const place = steps.indexOf(state.step);
  return place >= 0 && state.from === 'source' ? steps[(place + 1) % steps.length] : steps[0];
}

function lightSource() {
  const steps = state.from === 'code' ? [...state.lit] : [state.step].filter((step) => step !== null);
  const lit = new Set(steps.flatMap((step) => graph().steps[step].sources));
  let first = null;
  for (const line of byId('source').querySelectorAll('[data-source]')) {
    const own = lit.has(Number(line.dataset.source));
    line.classList.toggle('lit', own);
    if (own) first = line; // the last is the one that a fused step ends with
  }
  if (first && state.from !== 'source') reveal(byId('source'), first);
}

function reveal(pane, line, above = 0.4) {
  const at = line.getBoundingClientRect().top - pane.getBoundingClientRect().top + pane.scrollTop;
  pane.scrollTo({ top: Math.max(0, at - pane.clientHeight * above), behavior: 'instant' });
}

function drawCode() {
  const views = [['functions', 'Kernels'], ['host', 'Host program'], ['loops', 'Loops']].filter(([name]) => graph()[name].length);
  if (!views.some(([name]) => name === codeView) && views.length) codeView = views[0][0];
  tabs(byId('code-tabs'), views, codeView, (view) => { codeView = view; state.from = 'tab'; drawCode(); lightCode(); });
  const pane = byId('code');
  opened = new Set();
  if (codeView === 'functions') {
    const users = graph().functions.map(() => []);
    graph().steps.forEach((step, number) => step.functions.forEach((own) => users[own].push(number)));
    replace(pane, el('p', { class: 'note', id: 'no-code', hidden: true }), graph().functions.map((own, number) => el('div', { class: 'function', id: `function-${number}` },
      el('button', { type: 'button', 'aria-expanded': 'false', onclick: () => toggle(number, users[number]) }, el('b', {}, own.name || 'beginning of the file'), el('span', { class: 'dim' }, users[number].length ? `run by ${many(users[number].length, 'step')}` : '')))));
    return;
  }
  replace(pane, el('div', { class: 'rows' }, graph()[codeView].map(([text, step]) => (step === null
    ? el('div', { class: 'row dim' }, text || ' ')
    : el('button', { type: 'button', class: 'row', 'data-step': step, onclick: () => choose([step], 'code') }, text || ' ')))));
}

function toggle(number, steps) {
  if (steps.length && !(state.from === 'code' && steps.includes(state.step) && opened.has(number))) choose(steps, 'code');
  else unfold(number, !opened.has(number));
}

function unfold(number, open) {
  const place = byId(`function-${number}`);
  place.querySelector('button').setAttribute('aria-expanded', String(open));
  place.querySelector('pre')?.remove();
  opened[open ? 'add' : 'delete'](number);
  if (!open) return;
  const pre = el('pre', {});
  const { tokens } = graph().functions[number];
  for (let at = 0; at < tokens.length; at += 2) pre.append(tokens[at + 1] ? el('span', { class: tokens[at + 1] }, tokens[at]) : tokens[at]);
  place.append(pre);
}

function lightCode() {
  const pane = byId('code');
  if (codeView !== 'functions') {
    let first = null;
    for (const row of pane.querySelectorAll('.row')) {
      const own = row.dataset.step !== undefined && state.lit.has(Number(row.dataset.step));
      row.classList.toggle('lit', own);
      if (own && !first && Number(row.dataset.step) === state.step) first = row;
    }
    if (first && state.from !== 'code') reveal(pane, first);
    return;
  }
  const step = state.step === null ? null : graph().steps[state.step];
  const wanted = new Set(step ? step.functions : []);
  const note = byId('no-code');
  for (const number of [...opened]) if (!wanted.has(number)) unfold(number, false);
  for (const [number] of graph().functions.entries()) byId(`function-${number}`).classList.toggle('lit', wanted.has(number));
  for (const number of wanted) if (!opened.has(number)) unfold(number, true);
  if (note) {
    note.hidden = !step || wanted.size > 0;
    if (!note.hidden) replace(note, `Step ${state.step} runs no function of this list: it calls ${step.kind === 'library' ? library(step.how) : step.name}. `,
      el('button', { type: 'button', class: 'link', onclick: () => { codeView = 'host'; state.from = 'tab'; drawCode(); lightCode(); } }, 'Where it stands in the host program'),
      el('pre', {}, graph().host.filter(([, own]) => own === state.step).map(([text]) => text.trim()).join('\n')));
    if (!note.hidden) pane.scrollTo(0, 0);
  }
  if (wanted.size && state.from !== 'code') reveal(pane, byId(`function-${[...wanted][0]}`), 0);
}

when('graph', () => { drawSource(); drawCode(); });
when('steps', () => { showStep(); lightSource(); lightCode(); });
