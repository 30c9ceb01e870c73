// Guards, choices, misses and versions: what there is to read about an artifact.

const AT_ONCE = 100;

function drawGuards() {
  const { guards, waived } = artifact();
  const wanted = byId('guard-filter').value.trim().toLowerCase();
  const total = sum(guards.map((kind) => kind.rows.length));
  byId('guards-hint').textContent = `${many(total, 'guard')} of ${many(guards.length, 'kind')}. All of them must hold; the loader compares them natively before each call.${waived.length ? ` ${many(waived.length, 'guard')} waived by choice: ${waived.join('; ')}.` : ''}`;
  const out = [];
  for (const kind of guards) {
    const rows = wanted ? kind.rows.filter((row) => row.join(' ').toLowerCase().includes(wanted)) : kind.rows;
    if (!rows.length) continue;
    const place = el('details', { 'data-kind': kind.predicate }, el('summary', {}, el('span', {}, kind.words, ' ', el('code', {}, kind.predicate)), el('span', { class: 'count' }, wanted ? `${rows.length} of ${kind.rows.length}` : kind.rows.length.toLocaleString('en'))));
    place.addEventListener('toggle', () => { if (place.open && !place.querySelector('table')) list(place, rows); });
    if (wanted && rows.length <= AT_ONCE) { place.open = true; list(place, rows); }
    out.push(place);
  }
  replace(byId('guards-body'), out.length ? out : el('p', { class: 'note' }, wanted ? 'No guard has this in it.' : 'No guards: it serves every call.'));
}

function list(place, rows) {
  const body = el('tbody', {});
  const button = el('button', { type: 'button', class: 'more', onclick: () => add() });
  let shown = 0;
  function add() {
    for (const [path, value] of rows.slice(shown, shown + AT_ONCE)) body.append(el('tr', {}, el('td', {}, path), el('td', {}, value)));
    shown = Math.min(rows.length, shown + AT_ONCE);
    button.textContent = `${many(rows.length - shown, 'more guard')}`;
    button.hidden = shown === rows.length;
  }
  add();
  place.append(el('table', {}, body), button);
}

function drawChoices() {
  const { evidence } = artifact();
  const { steps, notes, role } = graph();
  const { choices = {}, kernels, kernel_serial_ns: serial, backward, ...rest } = role === 'backward' && evidence.backward ? evidence.backward : evidence;
  const calls = new Map();
  steps.filter((step) => step.kind === 'library').forEach((step) => { const name = `${step.title}, by ${library(step.how)}`; calls.set(name, (calls.get(name) || 0) + 1); });
  const own = steps.filter((step) => step.kind === 'kernel');
  const out = [];
  out.push(box('Who computes what', tree({ ...Object.fromEntries(calls), ...(own.length ? { 'generated loops': `${own.length}, by ${new Set(own.map((step) => step.how)).size} different functions` } : {}) })));
  out.push(box('Measured choices', Object.keys(choices).length ? measuredChoices(choices) : el('p', { class: 'dim' }, 'None were needed or recorded for this graph: products went to the library that the rules of the target name.')));
  out.push(box(`Fusions that were refused (${notes.length})`, notes.length ? [el('p', { class: 'dim' }, 'By the names that steps have before they are fused.'), el('ul', { class: 'plain' }, refusals(notes))] : el('p', { class: 'dim' }, 'None: whatever could be fused was.')));
  if (kernels && Object.keys(kernels).length) out.push(box('What kernels take of the device', rowsOfRecords(kernels) || tree(kernels)));
  if (serial && Object.keys(serial).length) out.push(box('Nanoseconds that kernels are expected to take on one core', tree(serial)));
  if (Object.keys(rest).length) out.push(box('Evidence', tree(rest)));
  replace(byId('choices-body'), out);
}

/** Equal reasons once, with all pairs of steps that they are the reasons for. */
function refusals(notes) {
  const found = new Map();
  for (const note of notes) {
    const [, pair, why] = /^not fused: (\w+ into \w+): (.*)$/s.exec(note) || [null, '', note];
    found.set(why, [...(found.get(why) || []), ...(pair ? [pair] : [])]);
  }
  return [...found].map(([why, pairs]) => el('li', {}, why, pairs.length ? el('span', { class: 'dim' }, ` (${pairs.join(', ')})`) : ''));
}

/** Each problem that was measured, with the candidates' microseconds; what won is first. */
function measuredChoices(choices) {
  return Object.entries(choices).map(([problem, record]) => {
    if (!record || !record.us) return el('div', { class: 'choice' }, el('div', { class: 'mono' }, problem), tree(record));
    const times = Object.entries(record.us).sort(([a, x], [b, y]) => (b === record.winner) - (a === record.winner) || x - y);
    return el('div', { class: 'choice' }, el('div', { class: 'mono' }, problem),
      times.map(([name, time]) => el('span', { class: name === record.winner ? 'won' : '' }, `${name} ${time} µs`)));
  });
}

function drawMisses() {
  const own = artifact();
  const { versions, digests } = own;
  const count = sum(own.guards.map((kind) => kind.rows.length));
  const other = [
    `Another minor version of torch than ${versions.torch}`,
    ...(versions.python ? [`Another minor version of Python than ${versions.python}, whose bytecode is stored`] : []),
    `A precast of another lowering version than ${versions.lowering}`,
    `A machine that does not run ${own.target}`,
    'Other compile options',
    `Any of ${many(count, 'guard')} that does not hold`,
    `A change in any of ${many(Object.keys(digests).length, 'function')} that were traced into it`,
  ];
  const names = Object.entries(digests);
  replace(byId('misses-body'),
    box('It misses with', el('ul', { class: 'plain' }, other.map((line) => el('li', {}, line))), el('p', { class: 'dim' }, 'Other weights, other values in tensors, and edits of what was not traced change nothing.')),
    box(`Fingerprints of your source (${names.length})`, names.length ? el('table', {}, el('tbody', {}, names.map(([name, digest]) => el('tr', {}, el('td', {}, name), el('td', {}, digest.slice(0, 12)))))) : 'None'),
    box('Compile options', tree(own.options)));
}

function drawMade() {
  const own = artifact();
  const { seconds: took, packages, precast, ...rest } = own.provenance;
  replace(byId('made-body'),
    box('Versions', tree({ ...own.versions, target: own.target, ...(packages || {}) })),
    box('The artifact', tree({ id: own.id, 'program key': own.key, 'guard hash': own.guard_hash, made: own.made, 'signed by': own.signed, frames: own.frames, ...(own.kept ? { 'kept for the backward pass': own.kept } : {}) })),
    ...(took ? [box('Seconds to compile', tree(took))] : []),
    ...(Object.keys(rest).length ? [box('Provenance', tree(rest))] : []),
    box(`Inputs of the ${graph().role} graph, weights among them (${graph().inputs.length})`, counted(graph().inputs.map(tensor))),
    box(`What it hands out (${graph().outputs.length})`, counted(graph().outputs.map(tensor))));
}

const tensor = (spec) => (spec && spec.size ? `${spec.dtype}[${spec.size.join(', ')}]` : String(spec && spec.kind ? spec.kind : spec));

byId('guard-filter').addEventListener('input', drawGuards);
when('artifact', () => { byId('guard-filter').value = ''; drawGuards(); drawMisses(); });
when('graph', () => { drawChoices(); drawMade(); });
