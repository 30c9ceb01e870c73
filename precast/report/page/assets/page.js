// The head of the page, the switches, and the start.

function drawHead() {
  const own = artifact();
  const { measured, graphs } = own;
  byId('artifact').value = String(state.artifact);
  byId('program').textContent = own.program;
  byId('under').textContent = `${own.id.slice(0, 12)} for ${own.target} · torch ${own.versions.torch}, ${own.versions.python ? `Python ${own.versions.python}, ` : ''}precast ${own.versions.precast || '?'} · made ${own.made}`;
  const steps = graphs.flatMap((item) => item.steps);
  const kernels = steps.filter((step) => step.kind === 'kernel').length;
  const flops = sum(steps.map((step) => step.operations || 0));
  const held = Math.max(0, ...graphs.map((item) => (item.steps.length ? item.memory.placed[item.memory.peak] + item.memory.apart[item.memory.peak] + item.memory.results[item.memory.peak] : 0)));
  const cards = [
    ...(measured ? [['lead', seconds(measured.call), `a call of the program; eager ${seconds(measured.eager)}, which is ${(measured.eager / measured.call).toPrecision(3)} times as long`],
      ['', percent(Math.min(1, measured.in_graphs / measured.recorded)), 'of a call is spent in compiled graphs; the rest is guards, Python and what runs eagerly']] : []),
    ...(own.prediction && steps.length ? [[measured ? '' : 'lead', seconds(sum(steps.map((step) => step.predicted || 0))), `to be expected of ${own.prediction.chip}${measured ? `, where ${seconds(sum(steps.map((step) => step.seconds || 0)))} were measured` : ''}`]] : []),
    ['', many(kernels, 'kernel'), `and ${many(steps.length - kernels, 'library call')}${graphs.length > 1 ? `, in ${graphs.length} graphs` : ''}`],
    ['', bytes(sum(steps.map((step) => step.bytes))), 'read and written a call, at the least'],
    ['', operations(flops), 'operations a call'],
    ['', bytes(held), 'at the peak, beside inputs and weights'],
    ['', sum(own.guards.map((kind) => kind.rows.length)).toLocaleString('en'), `guards, and ${many(Object.keys(own.digests).length, 'function')} whose change would miss`],
  ];
  replace(byId('cards'), cards.map(([kind, number, text]) => el('div', { class: `card ${kind}` }, el('b', {}, number), el('span', {}, text))));
}

function drawRoles() {
  tabs(byId('roles'), artifact().graphs.map((item, number) => [number, item.role[0].toUpperCase() + item.role.slice(1)]), state.graph, chooseGraph);
}

function listenToTheme() {
  const root = document.documentElement;
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const now = () => root.dataset.theme || (dark.matches ? 'dark' : 'light');
  byId('theme').addEventListener('click', () => { root.dataset.theme = now() === 'dark' ? 'light' : 'dark'; });
}

when('artifact', drawHead);
when('graph', drawRoles);
byId('artifact').addEventListener('change', (event) => chooseArtifact(Number(event.target.value)));
addEventListener('keydown', (event) => { if (event.key === 'Escape' && state.step !== null) clear(); });
addEventListener('hashchange', () => { if (location.hash.includes('/')) recall(); });
listenToTheme();
listenToCanvas();
recall();
