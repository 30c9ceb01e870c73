// Memory over time: bytes that live at each step, and where in the workspace they lie.

const FRAME = { left: 64, right: 12, live: 130, gap: 26, map: 150, foot: 22 };

function chart(height) {
  const width = Math.max(300, byId('memory-chart').clientWidth - 28);
  return { width, inner: width - FRAME.left - FRAME.right, root: svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img' }) };
}

function drawMemory() {
  const { memory, steps } = graph();
  const place = byId('memory-chart');
  if (!steps.length) { replace(place, el('p', { class: 'note' }, 'Not known: the artifact has no record of its steps.')); byId('memory-hint').textContent = ''; return; }
  const slots = memory.buffers.filter((own) => own[4] !== null);
  const varies = typeof memory.workspace === 'string';
  const planned = typeof memory.workspace === 'number' ? memory.workspace : Math.max(0, ...slots.map((own) => own[4] + own[1]));
  const temporary = memory.placed.map((value, at) => value + memory.apart[at]);
  const total = temporary.map((value, at) => value + memory.results[at]);
  const some = (values) => values.some((value) => value > 0);
  const most = Math.max(...total, planned, 1);
  const mapped = slots.length > 0 && planned > 0;
  const height = FRAME.live + 18 + (mapped ? FRAME.gap + FRAME.map : 0) + FRAME.foot;
  const { inner, width, root } = chart(height);
  const x = (at) => FRAME.left + (inner * at) / steps.length;
  const y = (value) => 18 + FRAME.live * (1 - value / most);
  byId('memory-hint').textContent = [planned ? `Temporaries share one workspace of ${bytes(planned)}.` : '', varies ? 'Its size depends on the call; all sizes here are those of the call that was traced.' : '', some(memory.apart) ? (mapped ? 'Some libraries allocate by themselves what they return.' : 'Where in it they lie was not recorded.') : '', 'Results are allocated one by one and handed out. Inputs and weights belong to the caller and are not counted.'].join(' ');
  root.append(svg('rect', { class: 'cursor', id: 'memory-cursor', y: 18, height: height - FRAME.foot - 18, width: 0 }));
  for (const part of [0, 0.5, 1]) root.append(svg('line', { class: 'grid', x1: FRAME.left, x2: width - FRAME.right, y1: y(most * part), y2: y(most * part) }), svg('text', { class: 'axis', x: FRAME.left - 8, y: y(most * part) + 4, 'text-anchor': 'end' }, bytes(most * part)));
  root.append(svg('path', { class: 'area-temporary', d: area(memory.placed, memory.placed.map(() => 0), x, y) }));
  root.append(svg('path', { class: 'area-apart', d: area(temporary, memory.placed, x, y) }));
  root.append(svg('path', { class: 'area-results', d: area(total, temporary, x, y) }));
  if (planned) root.append(svg('line', { class: 'planned', x1: FRAME.left, x2: width - FRAME.right, y1: y(planned), y2: y(planned) }));
  const end = memory.peak > steps.length * 0.6;
  root.append(svg('text', { class: 'label', x: x(memory.peak + 0.5) + (end ? -6 : 6), y: 12, 'text-anchor': end ? 'end' : 'start' }, `peak ${bytes(total[memory.peak])} at step ${memory.peak}`));
  if (mapped) drawMap(root, slots, planned, x, width);
  root.append(svg('text', { class: 'axis', x: FRAME.left, y: height - 5 }, 'step 0'), svg('text', { class: 'axis', x: width - FRAME.right, y: height - 5, 'text-anchor': 'end' }, `step ${steps.length - 1}`));
  root.addEventListener('click', (event) => {
    const at = Math.floor(((event.clientX - root.getBoundingClientRect().left) * width / root.getBoundingClientRect().width - FRAME.left) / inner * steps.length);
    if (at >= 0 && at < steps.length) choose([at], 'memory');
  });
  replace(place, root, el('div', { class: 'legend' },
    el('span', {}, el('i', { class: 'kernel swatch' }), 'in the workspace'), some(memory.apart) ? el('span', {}, el('i', { class: 'library swatch' }), mapped ? 'allocated by libraries' : 'temporaries') : null, some(memory.results) ? el('span', {}, el('i', { class: 'results swatch' }), 'results') : null,
    planned ? el('span', {}, el('i', { class: 'dashes' }), 'the workspace as planned') : null, mapped ? el('span', {}, 'below: each buffer where it lies in the workspace, from the step that writes it to its last use') : null));
}

function area(upper, lower, x, y) {
  const forth = upper.map((value, at) => `${x(at)} ${y(value)}L${x(at + 1)} ${y(value)}`).join('L');
  const back = lower.map((value, at) => `${x(at + 1)} ${y(value)}L${x(at)} ${y(value)}`).reverse().join('L');
  return `M${forth}L${back}z`;
}

function drawMap(root, slots, planned, x, width) {
  const top = 18 + FRAME.live + FRAME.gap;
  const y = (offset) => top + (FRAME.map * offset) / planned;
  root.append(svg('rect', { class: 'grid', x: FRAME.left, y: top, width: width - FRAME.left - FRAME.right, height: FRAME.map, fill: 'none' }));
  root.append(svg('text', { class: 'axis', x: FRAME.left - 8, y: top + 9, 'text-anchor': 'end' }, 'byte 0'), svg('text', { class: 'axis', x: FRAME.left - 8, y: top + FRAME.map, 'text-anchor': 'end' }, bytes(planned)));
  const { peak } = graph().memory;
  for (const [name, size, first, last, offset, , shape] of slots) {
    const big = first <= peak && peak <= last;
    root.append(svg('rect', { class: `slot${big ? ' big' : ''}`, 'data-first': first, 'data-last': last, x: x(first), y: y(offset), width: Math.max(1, x(last + 1) - x(first)), height: Math.max(1, y(offset + size) - y(offset)) },
      svg('title', {}, `${name} ${shape}: ${bytes(size)}, steps ${first} to ${last}`)));
  }
}

function lightMemory() {
  const { memory, steps } = graph();
  const at = state.step === null ? memory.peak : state.step;
  if (!steps.length) { byId('held-title').textContent = 'What is held'; replace(byId('held')); return; }
  const cursor = byId('memory-cursor');
  const inner = cursor ? cursor.parentNode.viewBox.baseVal.width - FRAME.left - FRAME.right : 0;
  if (cursor) { cursor.setAttribute('x', FRAME.left + (inner * at) / steps.length); cursor.setAttribute('width', state.step === null ? 0 : Math.max(2, inner / steps.length)); }
  for (const slot of byId('memory-chart').querySelectorAll('.slot')) slot.classList.toggle('lit', state.step !== null && Number(slot.dataset.first) === at);
  const live = memory.buffers.filter(([, , first, last]) => first <= at && at <= last).sort((a, b) => b[1] - a[1]);
  byId('held-title').textContent = state.step === null ? `What dominates the peak, at step ${at}` : `Held while step ${at} runs`;
  const rows = live.slice(0, 60).map(([name, size, first, last, , result, shape]) => el('tr', {},
    el('td', {}, el('span', { class: 'mono' }, name), el('div', { class: 'where' }, shape)),
    el('td', { class: 'num' }, bytes(size)),
    el('td', {}, 'by ', stepButton(first), result ? ', a result' : el('span', {}, last > at ? ', until ' : ', last used here', last > at ? stepButton(last) : ''))));
  replace(byId('held'), rows.length ? el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, 'Buffer'), el('th', { class: 'num' }, 'Size'), el('th', {}, 'Written'))), el('tbody', {}, rows)) : el('p', { class: 'note' }, 'Nothing of the graph’s own.'));
}

when('graph', drawMemory);
when('steps', lightMemory);
addEventListener('resize', () => { drawMemory(); lightMemory(); drawRoof(); lightWork(); });
