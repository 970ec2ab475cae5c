// Keeps the page at what its server says: figures are changed in place, charts are drawn again.
'use strict';
(() => {
  const box = document.getElementById('connection'), live = document.getElementById('live');
  let source, heard = Date.now(), software = null, newest = null, isDrawing = false;

  function say(text, lost) {
    box.textContent = text;
    box.classList.toggle('lost', lost);
  }

  // The reader's own: what was folded out, and buttons that were pressed.
  function isKept(node, name) {
    return (name === 'open' && node.nodeName === 'DETAILS') ||
      (node.dataset.chosen && ['aria-pressed', 'data-chosen'].includes(name));
  }

  function copyAttributes(old, next) {
    for (const { name, value } of [...next.attributes])
      if (old.getAttribute(name) !== value && !isKept(old, name)) old.setAttribute(name, value);
    for (const { name } of [...old.attributes])
      if (!next.hasAttribute(name) && !isKept(old, name)) old.removeAttribute(name);
  }

  // Makes `old` equal to `next` without replacing what is alike: focus, scrolling and charts stay.
  function become(old, next) {
    const isPlot = old.nodeType === Node.ELEMENT_NODE && old.classList.contains('plot');
    if (old.nodeName !== next.nodeName || (isPlot && old.id !== next.id)) {
      if (isPlot) Plotly.purge(old);
      old.replaceWith(next);
    } else if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== next.data) old.data = next.data;
    } else if (!isPlot) {
      copyAttributes(old, next);
      const before = [...old.childNodes], after = [...next.childNodes];
      before.slice(after.length).forEach(node => node.remove());
      after.forEach((node, at) => at < before.length ? become(before[at], node) : old.append(node));
    }
  }

  function show(figures) {
    const next = live.cloneNode(false);
    next.innerHTML = figures;  // the server escapes every text, and the page's policy runs no script in it
    become(live, next);
  }

  // Draws the newest charts; on a slow machine it leaves out some, and in a hidden tab all.
  function drawNewest() {
    if (isDrawing || newest === null || document.hidden) return;
    charts.splice(0, charts.length, ...newest.filter(chart => plot(chart.key)));
    [isDrawing, newest] = [true, null];
    const began = performance.now();
    draw().then(() => {
      document.documentElement.dataset.drawn = charts.length;
      setTimeout(() => { isDrawing = false; drawNewest(); }, 2 * (performance.now() - began));
    });
  }

  function connect() {
    source = new EventSource('events');
    source.addEventListener('hello', event => {
      if (software !== null && software !== event.data) location.reload();  // another version serves it now
      software = event.data;
    });
    source.addEventListener('time', event => {
      heard = Date.now();
      say('Live, as of ' + new Date(1000 * Number(event.data)).toLocaleTimeString(), false);
    });
    source.addEventListener('figures', event => show(JSON.parse(event.data)));
    source.addEventListener('charts', event => { newest = JSON.parse(event.data); drawNewest(); });
    source.onerror = () => {
      say('No answer from `qafel watch`: what is below may be old. Trying again.', true);
      if (source.readyState !== EventSource.CLOSED) return;
      fetch('events').then(answer => {  // why it was refused; an event source does not say
        if (answer.ok) answer.body.cancel();
        else answer.text().then(text => say(text, true));
      }, () => {});
      setTimeout(connect, 2000);
    };
  }

  document.addEventListener('visibilitychange', drawNewest);
  setInterval(() => {
    if (Date.now() - heard < 15000 || source.readyState === EventSource.CLOSED) return;
    heard = Date.now();
    source.close();  // a server that hangs closes no connection
    source.onerror();
  }, 5000);
  connect();
})();
