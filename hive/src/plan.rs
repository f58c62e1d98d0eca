//! Planning: the required constructors, their order, and the source of each parameter.

use std::collections::HashSet;
use std::ops::Range;

use crate::config::Settings;
use crate::error::GraphError;
use crate::graph::Graph;
use crate::key::Key;
use crate::missing::missing;
use crate::param::{Edge, Slot};

/// The order of construction and the resolved dependencies.
pub(crate) struct Plan {
    pub(crate) order: Vec<usize>,
    edges: Vec<Edge>,
    /// The range of each node in the list of edges.
    of: Vec<Range<usize>>,
}

impl Plan {
    /// Returns the dependencies of a node in declaration order; none if it is not planned.
    pub(crate) fn edges(&self, node: usize) -> &[Edge] {
        &self.edges[self.of[node].clone()]
    }

    /// Iterates over the slots that a node uses.
    pub(crate) fn uses(&self, node: usize) -> impl Iterator<Item = Slot> {
        self.edges(node).iter().flat_map(Edge::slots).copied()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    Open,
    Done,
}

/// A node whose dependencies are being visited.
struct Frame {
    node: usize,
    /// The index of the dependency that is being visited.
    dep: usize,
    /// The number of its slots that have been visited.
    slots: usize,
}

/// Plans from the invocations in order of registration, depth first, parameters left to right.
pub(crate) fn plan(graph: &Graph, settings: &Settings) -> (Plan, Vec<GraphError>) {
    plan_from(graph, settings, &graph.invokes)
}

/// Plans the dependencies of the given nodes; every error on the way is reported once.
pub(crate) fn plan_from(graph: &Graph, settings: &Settings, roots: &[usize]) -> (Plan, Vec<GraphError>) {
    let count = graph.nodes.len();
    let mut planner = Planner {
        graph,
        settings,
        marks: vec![Mark::New; count],
        plan: Plan {
            order: Vec::with_capacity(count),
            edges: Vec::with_capacity(graph.needs()),
            of: vec![0..0; count],
        },
        errors: vec![],
        cycles: HashSet::new(),
    };
    for root in roots {
        planner.visit(*root);
    }
    (planner.plan, planner.errors)
}

impl Frame {
    /// Returns the next dependency of this node.
    fn next(&mut self, plan: &Plan) -> Option<usize> {
        loop {
            if let Some(slot) = plan.edges(self.node).get(self.dep)?.slots().get(self.slots) {
                self.slots += 1;
                return Some(slot.node);
            }
            (self.dep, self.slots) = (self.dep + 1, 0);
        }
    }
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
            let Some(child) = frame.next(&self.plan) else {
                self.marks[frame.node] = Mark::Done;
                self.plan.order.push(frame.node);
                stack.pop();
                continue;
            };
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
        let begin = self.plan.edges.len();
        for dep in self.graph.deps(&self.graph.nodes[node]) {
            let edge = if dep.key.is_group() {
                Edge::Many(self.graph.members(node, &dep.key))
            } else {
                self.resolve(node, &dep.key, dep.optional)
            };
            self.plan.edges.push(edge);
        }
        self.plan.of[node] = begin..self.plan.edges.len();
        Frame { node, dep: 0, slots: 0 }
    }

    fn resolve(&mut self, node: usize, key: &Key, optional: bool) -> Edge {
        let Some(slot) = self.graph.lookup(node, key) else {
            if !optional {
                self.errors.push(missing(self.graph, self.settings, node, key));
            }
            return Edge::Absent;
        };
        if !optional && self.graph.out(slot).maybe {
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
        let key = |frame: &Frame| self.graph.deps(&self.graph.nodes[frame.node])[frame.dep].key;
        let step = |frame: &Frame| (self.graph.site(frame.node), key(frame));
        self.errors.push(GraphError::Cycle { steps: stack[from..].iter().map(step).collect() });
    }
}
