//! What is built together: a hive, or a scope with a life of its own.

use std::collections::{BTreeSet, HashMap};
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
use crate::outputs::{Call, Outs, Sink, Value};
use crate::param::{Cx, Edge, Values};
use crate::plan::Plan;
use crate::scope::{Core, MakeScope};

/// The constructors of a hive or scope, in order.
pub(crate) struct Part {
    steps: Vec<Step>,
    /// Nodes of the whole graph.
    nodes: usize,
    /// Nodes from around it that it uses, or that scopes in it use.
    pub(crate) needs: Vec<usize>,
}

struct Step {
    node: usize,
    site: Site,
    edges: Vec<Edge>,
    build: Build,
}

enum Build {
    Ready(Vec<Option<Value>>),
    Construct(Constructor),
    Scope(MakeScope, Arc<Part>),
}

impl Part {
    /// What is planned for the life in a scope of the graph.
    pub(crate) fn of(graph: &Graph, plan: &Plan, life: usize) -> Part {
        let mut lives: HashMap<usize, Vec<usize>> = HashMap::new();
        for node in &plan.order {
            lives.entry(graph.life(graph.nodes[*node].scope)).or_default().push(*node);
        }
        part(graph, plan, &lives, life)
    }

    /// Which nodes each node uses.
    pub(crate) fn uses(&self) -> Uses {
        let mut uses = vec![Vec::new(); self.nodes];
        for step in &self.steps {
            uses[step.node] = step.edges.iter().flat_map(Edge::slots).map(|slot| slot.node).collect();
        }
        uses
    }

    /// A place for the values of all nodes.
    pub(crate) fn no_values(&self) -> Values {
        (0..self.nodes).map(|_| None).collect()
    }

    /// Runs all constructors; gives the scopes that are in it.
    pub(crate) async fn construct(
        &self,
        values: &mut Values,
        shared: &Arc<Shared>,
        limits: &Times,
        cancel: &dyn CancelSource,
    ) -> Result<Vec<Arc<Core>>, HiveError> {
        shared.hooks.use_current_runtime();
        let deadline = Instant::now() + limits.start;
        let mut scopes = Vec::new();
        for step in &self.steps {
            let built = match &step.build {
                Build::Ready(ready) => ready.clone(),
                Build::Construct(constructor) => {
                    let run = Run { step, shared, deadline, limit: limits.start, cancel };
                    run.constructor(constructor, values).await?
                }
                Build::Scope(make, part) => {
                    let core = Core::new(part.clone(), step.site.clone(), shared.clone(), *limits);
                    scopes.push(core.clone());
                    vec![Some(make(core))]
                }
            };
            values[step.node] = Some(built);
        }
        // Last, so that scopes see all there is, and are stopped first.
        for scope in &scopes {
            scope.bind(values);
        }
        Ok(scopes)
    }

    /// Drops the values: consumers before what they consume.
    pub(crate) fn drop_values(&self, values: &mut Values) {
        for step in self.steps.iter().rev() {
            let dropped = catch_unwind(AssertUnwindSafe(|| values[step.node] = None));
            if let Err(panic) = dropped {
                let error = panic_text(&*panic);
                tracing::error!(error, constructor = %step.site, "An object panicked when it was dropped");
            }
        }
    }
}

fn part(graph: &Graph, plan: &Plan, lives: &HashMap<usize, Vec<usize>>, life: usize) -> Part {
    let own = lives.get(&life).map_or(&[][..], Vec::as_slice);
    let mut needs = BTreeSet::new();
    let steps: Vec<Step> = own
        .iter()
        .filter_map(|node| {
            let build = match &graph.nodes[*node].what {
                What::Ready(values) => Build::Ready(values.clone()),
                What::Construct(constructor) => Build::Construct(constructor.clone()),
                What::Scope { inner, make } => {
                    let part = part(graph, plan, lives, *inner);
                    needs.extend(part.needs.iter().copied());
                    Build::Scope(*make, Arc::new(part))
                }
                What::Config(_) => return None,
            };
            let mut site = graph.site(*node);
            if let What::Scope { inner, .. } = &graph.nodes[*node].what {
                site.module = graph.scopes[*inner].module.clone();
            }
            let edges = plan.edges[*node].clone();
            needs.extend(edges.iter().flat_map(Edge::slots).map(|slot| slot.node));
            Some(Step { node: *node, site, edges, build })
        })
        .collect();
    let own: BTreeSet<usize> = own.iter().copied().collect();
    let needs = needs.into_iter().filter(|node| !own.contains(node)).collect();
    Part { steps, nodes: graph.nodes.len(), needs }
}

/// One constructor at a time.
struct Run<'a> {
    step: &'a Step,
    shared: &'a Arc<Shared>,
    deadline: Instant,
    limit: Duration,
    cancel: &'a dyn CancelSource,
}

impl Run<'_> {
    async fn constructor(
        &self,
        constructor: &Constructor,
        values: &Values,
    ) -> Result<Vec<Option<Value>>, HiveError> {
        let site = &self.step.site;
        if self.cancel.is_cancelled() {
            return Err(self.cancelled());
        }
        let (function, module) = (site.place.function, site.module.clone());
        let handles =
            Handles { shared: self.shared.clone(), module: module.clone(), function, node: self.step.node };
        let begin = Instant::now();
        let span = self.shared.events.span(&module);
        let mut cx = Cx { values, handles: &handles, edges: &self.step.edges, pos: 0 };
        let call = catch_unwind(AssertUnwindSafe(|| span.in_scope(|| constructor.erased.call(&mut cx))));
        let result = match call {
            Ok(Call::Ready(result)) => result,
            Ok(Call::Pending(future)) => self.pending(future.instrument(span)).await?,
            Err(panic) => Err(anyhow::anyhow!("panicked: {}", panic_text(&*panic))),
        };
        let sink =
            result.map_err(|error| HiveError::Construct { site: site.clone(), error, rollback: vec![] })?;
        self.shared.events.emit(Event::Constructed { function, module, duration: begin.elapsed() });
        if let Some(tally) = &self.shared.tally {
            let mut outs = Outs::with_looks();
            constructor.erased.outs(&mut outs);
            tally.note(self.step.node, site, &self.step.edges, &outs, &sink.values);
        }
        Ok(sink.values)
    }

    async fn pending(
        &self,
        future: impl Future<Output = anyhow::Result<Sink>>,
    ) -> Result<anyhow::Result<Sink>, HiveError> {
        tokio::select! {
            result = timeout_at(self.deadline, catch(future)) => Ok(match result {
                Ok(Ok(result)) => result,
                Ok(Err(panic)) => Err(anyhow::anyhow!("panicked: {panic}")),
                Err(_) => Err(anyhow::anyhow!("did not finish within {:?}", self.limit)),
            }),
            () = self.cancel.cancelled() => Err(self.cancelled()),
        }
    }

    fn cancelled(&self) -> HiveError {
        HiveError::Cancelled { during: format!("constructor {}", self.step.site), rollback: vec![] }
    }
}
