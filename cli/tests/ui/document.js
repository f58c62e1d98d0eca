// A document that records elements and texts; ways that parse markup do not exist in it.
class Node {
  constructor(name) { Object.assign(this, { name, nodes: [], style: {}, attributes: {}, listeners: {} }); Node.names.add(name); }
  append(...nodes) { this.nodes.push(...nodes); }
  prepend(...nodes) { this.nodes.unshift(...nodes); }
  replaceChildren(...nodes) { this.nodes = nodes; }
  setAttribute(name, value) {
    if (/^on|href|src/i.test(name)) throw new Error("attribute " + name);
    this.attributes[name] = value;
  }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  set textContent(text) { this.nodes = [text]; }
  get childElementCount() { return this.nodes.length; }
  get lastElementChild() { return { remove: () => this.nodes.pop() }; }
  texts() { return this.nodes.flatMap(node => node instanceof Node ? node.texts() : [node]); }
}
Node.names = new Set();
for (const name of ["innerHTML", "outerHTML"]) Object.defineProperty(Node.prototype, name, { set() { throw new Error(name); } });
const known = {};
const find = (id, name) => known[id] ??= new Node(name);
globalThis.document = {
  hidden: false,
  getElementById: id => find(id, { filters: "form", pause: "button", timeline: "img", rows: "tbody" }[id] ?? "span"),
  querySelector: selector => find(selector.match(/^#(\w+) \.body$/)[1], "div"),
  createElement: name => new Node(name),
  createElementNS: (_, name) => new Node(name),
};
const realFetch = fetch;
globalThis.fetch = path => realFetch(process.env.PAGE + path);
const later = setTimeout;
globalThis.setTimeout = (work, ...rest) => work === poll ? 0 : later(work, ...rest);
globalThis.FormData = class { *[Symbol.iterator]() { yield ["verdict", "dropped"]; } };
globalThis.EventSource = class {
  static CLOSED = 2;
  constructor(url) { this.url = url; this.listeners = {}; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  close() {}
};
