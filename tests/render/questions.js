// What test_report_browser.py asks of a page: a name, and an expression of `window` and `document`.

//// width
window.innerWidth

//// dark
window.matchMedia('(prefers-color-scheme: dark)').matches

//// paper
window.getComputedStyle(document.body).backgroundColor

//// scroll_width
document.documentElement.scrollWidth

//// stick_out
// Elements that stick out of the page, but for what lies in a box that scrolls.
[...document.querySelectorAll('body *')].filter(e => {
  if (e.closest('.scroll') && !e.classList.contains('scroll')) return false;
  const r = e.getBoundingClientRect();
  return r.width && (r.right > document.documentElement.clientWidth + 1 || r.left < -1);
}).map(e => e.tagName + '.' + e.className).slice(0, 5)

//// scroll
[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length

//// devices
[...document.querySelectorAll('.devices')].every(e =>
  e.scrollWidth < e.parentElement.clientWidth + 2 && e.scrollHeight < e.parentElement.clientHeight + 2)

//// text
// Text of a chart that another text covers, or that is cut off by the chart's edge.
[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width).flatMap(svg => {
  const box = svg.getBoundingClientRect(), found = [];
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  texts.forEach(([a, p], i) => {
    if (p.left < box.left - 2 || p.right > box.right + 2 || p.top < box.top - 2 || p.bottom > box.bottom + 2)
      found.push('cut off: ' + a);
    texts.slice(i + 1).forEach(([b, q]) => {
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 1 && high > 4) found.push(a + ' over ' + b);
    });
  });
  return found;
})

//// broken
// Words of a table that are broken over two lines. A name with digits and dashes, as a UUID, may be.
[...document.querySelectorAll('td, th')].flatMap(cell => {
  const found = [], walker = document.createTreeWalker(cell, 4);
  while (walker.nextNode()) for (const word of walker.currentNode.data.matchAll(/[A-Za-z]{2,}/g)) {
    const range = document.createRange();
    range.setStart(walker.currentNode, word.index);
    range.setEnd(walker.currentNode, word.index + word[0].length);
    const tops = [...range.getClientRects()].filter(r => r.width).map(r => Math.round(r.top));
    if (new Set(tops).size > 1) found.push(word[0]);
  }
  return found;
}).slice(0, 5)

//// smallest
Math.min(
  ...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height).filter(h => h)
)

//// asked_for
window.performance.getEntriesByType('resource').map(e => e.name)
