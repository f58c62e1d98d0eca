//! Planning: which constructors are needed, in which order, and where each parameter comes from.

use std::collections::HashSet;

use crate::config::Settings;
use crate::error::GraphError;
use crate::graph::Graph;
use crate::key::Key;
use crate::missing::missing;
use crate::param::Edge;

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
pub(crate) fn plan(graph: &Graph, settings: &Settings) -> (Plan, Vec<GraphError>) {
    plan_from(graph, settings, &graph.invokes)
}

/// Plans what the given nodes need; every fault on the way is reported, none twice.
pub(crate) fn plan_from(graph: &Graph, settings: &Settings, roots: &[usize]) -> (Plan, Vec<GraphError>) {
    let count = graph.nodes.len();
    let mut planner = Planner {
        graph,
        settings,
        marks: vec![Mark::New; count],
        plan: Plan { order: Vec::with_capacity(count), edges: (0..count).map(|_| Vec::new()).collect() },
        errors: vec![],
        cycles: HashSet::new(),
    };
    for root in roots {
        planner.visit(*root);
    }
    (planner.plan, planner.errors)
}

struct Planner<'a> {
    graph: &'a Graph,
    settings: &'a Settings,
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
                Edge::Many(graph.members(node, &dep.key))
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
                self.errors.push(missing(self.graph, self.settings, node, key));
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
