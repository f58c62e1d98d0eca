//! The unit of construction: a hive, or a scope with a lifecycle of its own.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use crate::builder::Times;
use crate::constructor::Constructor;
use crate::error::{HiveError, Site};
use crate::event::Event;
use crate::graph::{Graph, What};
use crate::handles::{Handles, Shared};
use crate::lifecycle::{CancelSource, Uses, catch, panic_text};
use crate::outputs::{Call, Outs, Sink};
use crate::param::{Cx, Slot, Values};
use crate::plan::Plan;
use crate::scope::Core;

/// The nodes of a hive or scope, in the order in which they are built.
pub(crate) struct Part {
    graph: Arc<Graph>,
    plan: Arc<Plan>,
    order: Vec<usize>,
    /// The content of the scopes among them, by node.
    scopes: HashMap<usize, Arc<Part>>,
    /// Values of the surrounding hive that it, or a scope in it, uses.
    pub(crate) needs: Vec<Slot>,
}

impl Part {
    /// Plans the nodes of the lifecycle of a scope in the graph.
    pub(crate) fn of(graph: &Arc<Graph>, plan: &Arc<Plan>, life: usize) -> Part {
        let mut lives: HashMap<usize, Vec<usize>> = HashMap::new();
        for node in &plan.order {
            lives.entry(graph.life(*node)).or_default().push(*node);
        }
        part(graph, plan, &mut lives, life)
    }

    /// Returns the nodes that each node uses.
    pub(crate) fn uses(&self) -> Uses {
        let mut uses = vec![Vec::new(); self.graph.nodes.len()];
        for node in &self.order {
            uses[*node] = self.plan.uses(*node).map(|slot| slot.node).collect();
        }
        uses
    }

    /// Returns an empty slot for each value of all nodes.
    pub(crate) fn no_values(&self) -> Values {
        vec![None; self.graph.slots()]
    }

    /// Runs all constructors; returns the scopes in this part.
    pub(crate) async fn construct(
        &self,
        values: &mut Values,
        shared: &Arc<Shared>,
        limits: &Times,
        cancel: &dyn CancelSource,
    ) -> Result<Vec<Arc<Core>>, HiveError> {
        shared.hooks.use_current_runtime();
        let deadline = Instant::now() + limits.start;
        let run = Run { part: self, shared, deadline, limit: limits.start, cancel };
        let mut scopes = Vec::new();
        let mut sink = Sink::default();
        for &index in &self.order {
            let node = &self.graph.nodes[index];
            match &node.what {
                What::Ready(value) => sink.values.push(Some(value.clone())),
                What::Construct(constructor) => {
                    run.constructor(index, constructor, values, &mut sink).await?;
                }
                What::Scope { inner, make } => {
                    let module = self.graph.scopes[*inner].module.clone();
                    let site = Site { place: node.place, module };
                    let core = Core::new(self.scopes[&index].clone(), site, shared.clone(), *limits);
                    sink.values.push(Some(make(core.clone())));
                    scopes.push(core);
                }
                // A configuration struct was built, and its node replaced by a ready value, before the planning.
                What::Config(_) => {}
            }
            for (slot, value) in node.outs.clone().zip(sink.values.drain(..)) {
                values[slot] = value;
            }
        }
        // Last, so that scopes see all objects of this part, and are stopped first.
        for scope in &scopes {
            scope.bind(values);
        }
        Ok(scopes)
    }

    /// Drops the values: dependents before their dependencies.
    pub(crate) fn drop_values(&self, values: &mut Values) {
        for node in self.order.iter().rev() {
            for slot in self.graph.nodes[*node].outs.clone() {
                let dropped = catch_unwind(AssertUnwindSafe(|| values[slot] = None));
                if let Err(panic) = dropped {
                    let (error, site) = (panic_text(&*panic), self.graph.site(*node));
                    tracing::error!(error, constructor = %site, "An object panicked when it was dropped");
                }
            }
        }
    }
}

fn part(graph: &Arc<Graph>, plan: &Arc<Plan>, lives: &mut HashMap<usize, Vec<usize>>, life: usize) -> Part {
    let order = lives.remove(&life).unwrap_or_default();
    let mut scopes = HashMap::new();
    for node in &order {
        if let What::Scope { inner, .. } = graph.nodes[*node].what {
            scopes.insert(*node, Arc::new(part(graph, plan, lives, inner)));
        }
    }
    let own = order.iter().flat_map(|node| plan.uses(*node));
    let inside = scopes.values().flat_map(|part: &Arc<Part>| part.needs.iter().copied());
    let needs = own.chain(inside).filter(|slot| graph.life(slot.node) != life).collect();
    Part { graph: graph.clone(), plan: plan.clone(), order, scopes, needs }
}

/// The execution of one constructor at a time.
struct Run<'a> {
    part: &'a Part,
    shared: &'a Arc<Shared>,
    deadline: Instant,
    limit: Duration,
    cancel: &'a dyn CancelSource,
}

impl Run<'_> {
    async fn constructor(
        &self,
        node: usize,
        constructor: &Constructor,
        values: &Values,
        sink: &mut Sink,
    ) -> Result<(), HiveError> {
        let Part { graph, plan, .. } = self.part;
        if self.cancel.is_cancelled() {
            return Err(self.cancelled(node));
        }
        let (function, module) = (constructor.place.function, &graph.scopes[graph.nodes[node].scope].module);
        let handles = Handles { shared: self.shared, module, function, node };
        let begin = Instant::now();
        let span = self.shared.events.span(module);
        let mut cx = Cx { values, handles: &handles, edges: plan.edges(node), pos: 0 };
        let call =
            catch_unwind(AssertUnwindSafe(|| span.in_scope(|| constructor.erased.call(&mut cx, sink))));
        let result = match call {
            Ok(Call::Ready(result)) => result,
            Ok(Call::Pending(future)) => {
                self.pending(node, future.instrument(span)).await?.map(|given| *sink = given)
            }
            Err(panic) => Err(anyhow::anyhow!("panicked: {}", panic_text(&*panic))),
        };
        let (given, declared) = (sink.values.len(), graph.nodes[node].outs.len());
        let result = match result {
            Ok(()) if given != declared => {
                Err(anyhow::anyhow!("its result gives {given} values and declares {declared}"))
            }
            result => result,
        };
        result.map_err(|error| HiveError::Construct { site: graph.site(node), error, rollback: vec![] })?;
        let end = Instant::now();
        let constructed = Event::Constructed { function, module: module.clone(), duration: end - begin };
        self.shared.events.emit_at(&constructed, end);
        if let Some(tally) = &self.shared.tally {
            let mut outs = Outs::with_looks();
            constructor.erased.outs(&mut outs);
            tally.note(node, &graph.site(node), plan.edges(node), &outs, &sink.values);
        }
        Ok(())
    }

    async fn pending(
        &self,
        node: usize,
        future: impl Future<Output = anyhow::Result<Sink>>,
    ) -> Result<anyhow::Result<Sink>, HiveError> {
        tokio::select! {
            result = timeout_at(self.deadline, catch(future)) => Ok(match result {
                Ok(Ok(result)) => result,
                Ok(Err(panic)) => Err(anyhow::anyhow!("panicked: {panic}")),
                Err(_) => Err(anyhow::anyhow!("did not finish within {:?}", self.limit)),
            }),
            () = self.cancel.cancelled() => Err(self.cancelled(node)),
        }
    }

    fn cancelled(&self, node: usize) -> HiveError {
        let during = format!("constructor {}", self.part.graph.site(node));
        HiveError::Cancelled { during, rollback: vec![] }
    }
}
