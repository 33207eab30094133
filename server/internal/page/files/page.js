'use strict';
// Keeps the page as the server sees it. The server sends HTML that it has escaped; the page's policy runs no
// script but this file.
const $ = id => document.getElementById(id);
let skew = Number(document.body.dataset.now) - Date.now();

const two = n => String(n).padStart(2, '0');
function span(ms) {
  const s = Math.floor(Math.max(ms, 0) / 1000);
  if (s < 60) return s + 's';
  if (s < 3600) return Math.floor(s / 60) + 'm ' + two(s % 60) + 's';
  if (s < 86400) return Math.floor(s / 3600) + 'h ' + two(Math.floor(s / 60) % 60) + 'm';
  return Math.floor(s / 86400) + 'd ' + two(Math.floor(s / 3600) % 24) + 'h';
}

// tick lets times run, and their bars, where they can be seen.
function tick() {
  const now = Date.now() + skew;
  for (const el of document.querySelectorAll('[data-since], [data-until]')) {
    if (!el.checkVisibility({contentVisibilityAuto: true})) continue;
    if (el.dataset.since) { el.textContent = span(now - el.dataset.since); continue; }
    const left = el.dataset.until - now;
    const percent = Math.min(100, Math.max(0, Math.round(100 * left / el.dataset.ttl)));
    el.querySelector('rect').setAttribute('width', percent + '%');
    el.querySelector('time').textContent = span(left);
    el.dataset.tone = percent < 10 ? 'bad' : percent < 34 ? 'late' : 'good';
  }
}

// clocks shows instants in the time zone of the viewer.
function clocks() {
  for (const el of document.querySelectorAll('[data-clock]')) {
    const t = new Date(Number(el.dataset.clock));
    el.textContent = (t.toDateString() === new Date().toDateString() ? '' : t.toLocaleDateString(document.documentElement.lang) + ' ')
      + [t.getHours(), t.getMinutes(), t.getSeconds()].map(two).join(':');
    el.removeAttribute('data-clock');
  }
}

// lasting is an element without what this script changes in it.
const lasting = el => el.outerHTML.replace(/>[^<]*<\/time>| (width|data-tone|data-clock)="[^"]*"/g, '');

function apply(group) {
  const box = $(group.id);
  for (const piece of group.set) {
    const made = document.createElement('template');
    made.innerHTML = piece.html;
    const old = $(piece.id);
    if (old && lasting(old) === lasting(made.content.firstElementChild)) continue; // as after each connection
    if (old) old.replaceWith(made.content); else box.append(made.content);
  }
  for (const [id, ends] of Object.entries(group.ends || {})) // pairs: how long after now, and the TTL
    $(id)?.querySelectorAll('[data-until]').forEach((el, i) => {
      el.dataset.until = Date.now() + skew + ends[2 * i];
      el.dataset.ttl = ends[2 * i + 1];
    });
  if (!group.order) return;
  const keep = new Set(group.order);
  for (const el of [...box.children]) if (!keep.has(el.id)) el.remove();
  let at = box.firstElementChild;
  for (const id of group.order) {
    const el = $(id);
    if (el === at) at = at.nextElementSibling; else box.insertBefore(el, at);
  }
}

let stream;
function live(on) {
  $('live').classList.toggle('on', on);
  $('live').textContent = on ? $('live').dataset.yes : $('live').dataset.no;
}
// A page that is not seen has no stream: browsers open only six for a server.
function follow() {
  if (document.hidden) { stream?.close(); stream = undefined; return; }
  if (stream && stream.readyState !== EventSource.CLOSED) return;
  stream = new EventSource(document.body.dataset.events);
  stream.addEventListener('hello', () => live(true));
  stream.addEventListener('change', event => {
    const change = JSON.parse(event.data), focus = document.activeElement;
    skew = change.now - Date.now();
    for (const group of change.groups) apply(group);
    if (focus?.id && document.activeElement !== focus) $(focus.id)?.focus({preventScroll: true});
    clocks();
    tick();
  });
  stream.addEventListener('error', () => {
    live(false);
    if (stream?.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  });
}

// The dialog that breaks a lock, once its name was typed.
const dialog = $('break');
if (dialog) {
  document.addEventListener('click', event => {
    const button = event.target.closest('[data-break]');
    if (!button) return;
    $('break-fence').value = $('break-shown').textContent = button.dataset.break;
    $('break-holder').textContent = button.closest('.card').querySelector('.party').textContent;
    $('break-confirm').value = '';
    $('break-do').disabled = true;
    dialog.showModal();
  });
  // A change may have replaced the button meanwhile, which the browser would focus again.
  dialog.addEventListener('close', () => document.querySelector(`[data-break="${$('break-fence').value}"]`)?.focus());
  $('break-confirm').addEventListener('input', event => {
    $('break-do').disabled = event.target.value !== $('break-name').dataset.name;
  });
}

document.addEventListener('keydown', event => {
  const search = document.querySelector('[type=search]');
  if (event.key !== '/' || !search || event.target.matches('input')) return;
  event.preventDefault();
  search.focus();
});

clocks();
tick();
setInterval(tick, 1000);
if (document.body.dataset.events) {
  follow();
  document.addEventListener('visibilitychange', follow);
}
