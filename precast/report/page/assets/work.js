// What each step has to do, and how near it comes to what the machine could do: the roofline, and a table.

const ORDERS = { step: (row) => row.first, what: null, bytes: (row) => -row.bytes, operations: (row) => -row.operations, predicted: (row) => -row.predicted, seconds: (row) => -row.seconds, gap: (row) => -(row.seconds - row.least), peak: (row) => row.least / row.seconds };
const work = { order: 'bytes', each: false, all: false };
const SHOWN = 30;

/** Rows of the table: a step, or the same step of every layer. */
function rowsOf() {
  const { steps, layers } = graph();
  const found = new Map();
  steps.forEach((step, number) => {
    const at = work.each ? null : layerOf(number);
    const key = at ? layers[at.place].first + at.off : number;
    const row = found.get(key) || { first: key, steps: [], bytes: 0, operations: 0, predicted: 0, seconds: 0, least: 0 };
    row.steps.push(number);
    row.bytes += step.bytes;
    row.operations += step.operations || 0;
    row.predicted += step.predicted || 0;
    row.seconds += step.seconds || 0;
    row.least += step.least || 0;
    found.set(key, row);
  });
  return [...found.values()];
}

function drawWork() {
  const { steps, runs } = graph();
  const { timed, expected } = state.shares;
  const { measured, prediction } = artifact();
  byId('work-title').textContent = timed ? 'Time, and what the machine could do' : expected ? 'Work, and the time to be expected' : 'Work';
  const foretold = expected ? `Expected times are by the record of ${prediction.chip} (${prediction.source}): what a call costs, and the longer of moving the bytes, faster from caches, and computing. ` : '';
  replace(byId('work-hint'), foretold, timed
    ? `Median times of each step where it lies in a call${runs && runs !== 1 ? `, which runs this graph ${runs} times` : ''}. The roofline is the least time that the bytes and operations of a step allow on this machine: ${bytes(measured.bytes_rate)}/s in a copy${Object.entries(measured.product_rates).map(([name, rate]) => `, ${operations(rate)}FLOP/s in ${name} products`).join('')}. Above 100% a cache holds what the step reads, or the machine had other work while its rates were measured.`
    : ['What each step has to read, write and compute at the least. Nothing was run for this page: made from a build file, ', el('code', {}, 'precast report FILE -o page.html'), ' times each step as well.']);
  if (timed && ['step', 'bytes'].includes(work.order)) work.order = 'gap';
  if (!timed && !['step', 'bytes', 'operations', ...(expected ? ['predicted'] : [])].includes(work.order)) work.order = 'bytes';
  if (!timed && expected && work.order === 'bytes') work.order = 'predicted';
  drawRoof();
  drawTable();
  byId('work').hidden = !steps.length;
}

function drawTable() {
  const { steps, sources } = graph();
  const { timed, expected } = state.shares;
  const main = timed ? 'seconds' : expected ? 'predicted' : 'bytes';
  const rows = rowsOf().sort((a, b) => ORDERS[work.order](a) - ORDERS[work.order](b));
  const total = { bytes: sum(steps.map((step) => step.bytes)), predicted: sum(steps.map((step) => step.predicted || 0)), seconds: sum(steps.map((step) => step.seconds || 0)) };
  const most = Math.max(...rows.map((row) => row[main]), 1e-12);
  const columns = [['step', 'Step', 'at'], ['what', 'What', 'what'], ['bytes', 'Bytes', main === 'bytes' ? 'num' : 'num wide-only'], ['operations', 'Operations', 'num wide-only'],
    ...(expected ? [['predicted', 'Expected', timed ? 'num wide-only' : 'num']] : []),
    ...(timed ? [['seconds', 'Time', 'num'], ['peak', 'Of roofline', 'num'], ['gap', 'Could gain', 'num wide-only']] : [])];
  const head = el('tr', {}, columns.map(([name, text, kind]) => el('th', { class: kind, 'aria-sort': name === work.order ? 'ascending' : null },
    ORDERS[name] ? el('button', { type: 'button', onclick: () => { work.order = name; drawTable(); lightWork(); } }, text, name === work.order ? ' ▾' : '') : text)));
  const shown = work.all ? rows : rows.slice(0, SHOWN);
  const body = shown.map((row) => {
    const step = steps[row.first];
    const line = step.sources.length ? sources[step.sources[step.sources.length - 1]] : '';
    const bar = el('span', { class: 'bar-of' });
    bar.style.width = `${Math.max(1, 100 * row[main] / most)}%`;
    const cells = { step: [row.first, row.steps.length > 1 ? ` ×${row.steps.length}` : ''], what: [el('i', { class: `${step.kind} swatch` }), step.title, el('div', { class: 'where' }, line)], bytes: [bytes(row.bytes), main === 'bytes' ? bar : ''], operations: [row.operations ? operations(row.operations) : '–'], predicted: [seconds(row.predicted), timed ? '' : [` ${percent(row.predicted / (total.predicted || 1))}`, bar], timed ? '' : el('div', { class: 'dim' }, step.limit)], seconds: [seconds(row.seconds), ` ${percent(row.seconds / (total.seconds || 1))}`, bar], peak: [percent(row.least / (row.seconds || 1)), el('div', { class: 'dim' }, step.bound)], gap: [seconds(Math.max(0, row.seconds - row.least))] };
    return el('tr', { class: 'pick', tabindex: 0, 'data-steps': row.steps.join(','), onclick: () => choose(row.steps, 'table'), onkeydown: (event) => { if (event.key === 'Enter') choose(row.steps, 'table'); } }, columns.map(([name, , kind]) => el('td', { class: kind }, cells[name])));
  });
  const foot = [];
  if (rows.length > shown.length) foot.push(el('button', { type: 'button', class: 'more', onclick: () => { work.all = true; drawTable(); lightWork(); } }, `Show all ${many(rows.length, 'row')}`));
  if (graph().layers.length) foot.push(el('button', { type: 'button', class: 'more', onclick: () => { work.each = !work.each; drawTable(); lightWork(); } }, work.each ? 'One row for the same step of all layers' : 'A row for each step'));
  replace(byId('work-table'), el('table', {}, el('thead', {}, head), el('tbody', {}, body)), foot);
}

function drawRoof() {
  const place = byId('roof');
  const measured = artifact().measured;
  const timed = graph().steps.map((step, number) => ({ ...step, number })).filter((step) => step.seconds > 0 && step.operations > 0 && step.bytes > 0);
  place.hidden = !measured || !timed.length;
  if (place.hidden) return;
  const width = Math.max(300, (place.clientWidth || byId('work-table').clientWidth) - 28);
  const height = 320;
  const edge = { left: 66, right: 16, top: 28, bottom: 38 };
  const product = Math.max(0, ...Object.values(measured.product_rates));
  const roofs = [['loops', measured.elementwise_rate], ...(product ? [['products', product]] : [])];
  const range = (values, low, high) => [Math.floor(Math.log10(Math.min(...values)) - low), Math.ceil(Math.log10(Math.max(...values)) + high)];
  const [x0, x1] = range([...timed.map((step) => step.operations / step.bytes), roofs[roofs.length - 1][1] / measured.bytes_rate], 0, 0);
  const [y0, y1] = range([...timed.map((step) => step.operations / step.seconds), ...roofs.map(([, rate]) => rate)], 0, 0);
  const x = (value) => edge.left + (width - edge.left - edge.right) * (Math.log10(value) - x0) / (x1 - x0);
  const y = (value) => edge.top + (height - edge.top - edge.bottom) * (1 - (Math.log10(value) - y0) / (y1 - y0));
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': 'Roofline: operations a second over operations per byte of each step' });
  for (let at = x0; at <= x1; at += 1) root.append(svg('line', { class: 'grid', x1: x(10 ** at), x2: x(10 ** at), y1: edge.top, y2: height - edge.bottom }), svg('text', { class: 'axis', x: x(10 ** at), y: height - edge.bottom + 15, 'text-anchor': 'middle' }, at < 0 ? String(10 ** at) : operations(10 ** at)));
  for (let at = y0; at <= y1; at += 1) root.append(svg('line', { class: 'grid', x1: edge.left, x2: width - edge.right, y1: y(10 ** at), y2: y(10 ** at) }), svg('text', { class: 'axis', x: edge.left - 8, y: y(10 ** at) + 4, 'text-anchor': 'end' }, `${operations(10 ** at)}/s`));
  const highest = Math.max(...roofs.map(([, rate]) => rate));
  const from = Math.max(10 ** x0, 10 ** y0 / measured.bytes_rate);
  root.append(svg('path', { class: 'roofline', d: `M${x(from)} ${y(from * measured.bytes_rate)}L${x(highest / measured.bytes_rate)} ${y(highest)}` }));
  for (const [name, rate] of roofs) root.append(svg('path', { class: 'roofline', d: `M${x(rate / measured.bytes_rate)} ${y(rate)}L${width - edge.right} ${y(rate)}` }), roofLabel(x(rate / measured.bytes_rate), y(rate), rate === highest, width, `${name}: ${operations(rate)}/s`));
  root.append(svg('text', { class: 'axis', x: width - edge.right, y: height - 6, 'text-anchor': 'end' }, 'operations per byte'), svg('text', { class: 'axis', x: 0, y: 12 }, 'operations a second'));
  for (const step of timed.sort((a, b) => b.seconds - a.seconds)) {
    const radius = 3.5 + 11 * Math.sqrt(state.shares.parts[step.number] / state.shares.most);
    root.append(svg('circle', { class: `dot ${step.kind}`, 'data-step': step.number, cx: x(step.operations / step.bytes), cy: y(step.operations / step.seconds), r: radius, onclick: () => choose([step.number], 'roof') },
      svg('title', {}, `Step ${step.number}: ${step.title}\n${seconds(step.seconds)}, ${percent(step.least / step.seconds)} of the roofline`)));
  }
  replace(place, root);
}

/** Beside the ridge of its roof: above the highest, below the others. */
function roofLabel(x, y, highest, width, text) {
  const end = x > (highest ? width * 0.7 : width - 130);
  return svg('text', { class: 'axis', x: x + (end ? -8 : 8), y: highest ? y - 6 : y + 15, 'text-anchor': end ? 'end' : 'start' }, text);
}

function lightWork() {
  for (const row of byId('work-table').querySelectorAll('tr.pick')) row.classList.toggle('lit', row.dataset.steps.split(',').some((step) => state.lit.has(Number(step))));
  for (const dot of byId('roof').querySelectorAll('.dot')) dot.classList.toggle('lit', state.lit.has(Number(dot.dataset.step)));
}

when('graph', () => { work.all = false; drawWork(); });
when('steps', lightWork);
