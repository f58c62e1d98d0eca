//! Planning: which constructors are needed, in which order, and where each parameter comes from.

use std::collections::HashSet;

use crate::error::GraphError;
use crate::graph::Graph;
use crate::hints::likeness;
use crate::key::{Key, short};
use crate::param::{Edge, Slot};

/// The order of construction and the resolved dependencies, by node.
pub(crate) struct Plan {
    pub(crate) order: Vec<usize>,
    pub(crate) edges: Vec<Vec<Edge>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    Open,
    Done,
}

struct Frame {
    node: usize,
    needs: Vec<(usize, Key)>,
    next: usize,
}

/// Plans from the invocations in order of registration, depth first, parameters left to right.
pub(crate) fn plan(graph: &Graph) -> (Plan, Vec<GraphError>) {
    let roots = graph.invokes.clone();
    plan_from(graph, roots)
}

/// Plans what the given nodes need; every fault on the way is reported, none twice.
pub(crate) fn plan_from(graph: &Graph, roots: Vec<usize>) -> (Plan, Vec<GraphError>) {
    let count = graph.nodes.len();
    let mut planner = Planner {
        graph,
        marks: vec![Mark::New; count],
        plan: Plan { order: Vec::with_capacity(count), edges: (0..count).map(|_| Vec::new()).collect() },
        errors: vec![],
        cycles: HashSet::new(),
    };
    for root in roots {
        planner.visit(root);
    }
    (planner.plan, planner.errors)
}

struct Planner<'a> {
    graph: &'a Graph,
    marks: Vec<Mark>,
    plan: Plan,
    errors: Vec<GraphError>,
    cycles: HashSet<Vec<usize>>,
}

impl Planner<'_> {
    fn visit(&mut self, root: usize) {
        if self.marks[root] != Mark::New {
            return;
        }
        let mut stack = vec![self.enter(root)];
        while let Some(frame) = stack.last_mut() {
            let Some((child, _)) = frame.needs.get(frame.next).copied() else {
                self.marks[frame.node] = Mark::Done;
                self.plan.order.push(frame.node);
                stack.pop();
                continue;
            };
            frame.next += 1;
            match self.marks[child] {
                Mark::Done => {}
                Mark::New => {
                    let inner = self.enter(child);
                    stack.push(inner);
                }
                Mark::Open => self.cycle(&stack, child),
            }
        }
    }

    /// Resolves the dependencies of a node.
    fn enter(&mut self, node: usize) -> Frame {
        self.marks[node] = Mark::Open;
        let graph = self.graph;
        let deps = &graph.nodes[node].deps;
        let mut edges = Vec::with_capacity(deps.len());
        let mut needs = Vec::with_capacity(deps.len());
        for dep in deps {
            let edge = if dep.key.is_group() {
                Edge::Many(graph.members(graph.nodes[node].scope, &dep.key))
            } else {
                self.resolve(node, &dep.key, dep.optional)
            };
            needs.extend(edge.slots().iter().map(|slot| (slot.node, dep.key)));
            edges.push(edge);
        }
        self.plan.edges[node] = edges;
        Frame { node, needs, next: 0 }
    }

    fn resolve(&mut self, node: usize, key: &Key, optional: bool) -> Edge {
        let Some(slot) = self.graph.lookup(node, key) else {
            if !optional {
                self.errors.push(self.missing(node, key));
            }
            return Edge::Absent;
        };
        if !optional && self.graph.nodes[slot.node].outs[slot.out].maybe {
            self.errors.push(GraphError::Uncertain {
                key: *key,
                needed_by: self.graph.site(node),
                provider: self.graph.site(slot.node),
            });
        }
        Edge::Value(slot)
    }

    fn missing(&self, node: usize, key: &Key) -> GraphError {
        let (graph, needed_by) = (self.graph, self.graph.site(node));
        if let Some(slot) = graph.scopes.iter().find_map(|scope| scope.providers.get(key)) {
            return GraphError::Private { key: *key, needed_by, provider: graph.site(slot.node) };
        }
        let want = short(key.type_name());
        let provided: HashSet<(Key, Slot)> =
            graph.scopes.iter().flat_map(|scope| scope.providers.iter().map(|(k, s)| (*k, *s))).collect();
        let mut near: Vec<_> = provided
            .into_iter()
            .filter(|(have, _)| have.is_config() == key.is_config())
            .filter_map(|(have, slot)| {
                Some((likeness(&want, &short(have.type_name()))?, slot.node, slot.out, have))
            })
            .collect();
        near.sort_unstable_by_key(|(likeness, node, out, _)| (*likeness, *node, *out));
        let hints = near.iter().take(3).map(|(_, node, _, have)| {
            let provider = graph.site(*node);
            if have.type_name() == key.type_name() {
                format!(
                    "hint: {provider} gives a type of the same name: are there two versions of its crate?"
                )
            } else {
                format!("hint: did you mean {have}, provided by {provider}?")
            }
        });
        let none = key.is_config().then(|| "hint: add `config::<..>()` to a module".to_owned());
        GraphError::Missing { key: *key, needed_by, hints: hints.chain(none).collect() }
    }

    fn cycle(&mut self, stack: &[Frame], back_to: usize) {
        let from = stack.iter().position(|frame| frame.node == back_to).unwrap_or(0);
        let mut members: Vec<usize> = stack[from..].iter().map(|frame| frame.node).collect();
        members.sort_unstable();
        if !self.cycles.insert(members) {
            return;
        }
        // `next` already points behind the dependency that is being followed.
        let step = |frame: &Frame| (self.graph.site(frame.node), frame.needs[frame.next - 1].1);
        self.errors.push(GraphError::Cycle { steps: stack[from..].iter().map(step).collect() });
    }
}
