//! Generated cells: constructors whose types are known at run time only.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::time::{Instant, sleep};

use crate::cell::{Cell, Repr, bundle, invoke, module, scope};
use crate::constructor::{Constructor, Erased};
use crate::error::{HiveError, Place};
use crate::key::Key;
use crate::lifecycle::Lifecycle;
use crate::outputs::{Call, Out, Outs, Sink, Value};
use crate::param::{Cx, Dep, Deps, Param};
use crate::scope::Scope;

/// A parameter of one of the types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Required(usize),
    Optional(usize),
    Group(usize),
}

/// A result of one of the types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Give {
    Plain(usize),
    /// As an `Option`; the flag is whether it is `Some`.
    Maybe(usize, bool),
    Member(usize),
}

#[derive(Clone, Debug)]
pub(super) enum Gen {
    Provide {
        private: bool,
        asks: Vec<Ask>,
        gives: Vec<Give>,
    },
    Invoke(Vec<Ask>),
    DecorateAll {
        asks: Vec<Ask>,
        gives: Give,
    },
    Decorate {
        asks: Vec<Ask>,
        gives: Give,
        inside: Vec<Gen>,
    },
    Module(Vec<Gen>),
    /// Enabled if this switch has this value.
    When(usize, bool, Vec<Gen>),
    /// With a lifecycle of its own, and an invocation outside of it that takes its handle.
    Scope(Vec<Gen>),
}

/// The maximum number of scopes with a lifecycle of their own; further ones are modules.
pub(super) const LIVES: usize = 3;

pub(super) const TYPES: usize = 4;

struct T<const I: usize>;

pub(super) fn one(of: usize) -> Key {
    [Key::of::<T<0>>(), Key::of::<T<1>>(), Key::of::<T<2>>(), Key::of::<T<3>>()][of]
}

pub(super) fn many(of: usize) -> Key {
    [Key::group::<T<0>>(), Key::group::<T<1>>(), Key::group::<T<2>>(), Key::group::<T<3>>()][of]
}

impl Ask {
    pub(super) fn key(self) -> Key {
        match self {
            Ask::Required(of) | Ask::Optional(of) => one(of),
            Ask::Group(of) => many(of),
        }
    }
}

impl Give {
    pub(super) fn key(self) -> Key {
        match self {
            Give::Plain(of) | Give::Maybe(of, _) => one(of),
            Give::Member(of) => many(of),
        }
    }
}

#[derive(hive::Config)]
pub(super) struct Switches {
    a: bool,
    b: bool,
}

impl Switches {
    fn stands(&self, switch: usize) -> bool {
        if switch == 0 { self.a } else { self.b }
    }
}

/// The arguments of each run: for each parameter the ids of the nodes that made it.
pub(super) type Log = Arc<Mutex<Vec<(usize, Vec<Vec<usize>>)>>>;

/// A start hook: whether it is parallel, and how long it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HookGen {
    pub(super) parallel: bool,
    pub(super) millis: u64,
}

/// A hook that has run: its node, its index within the node, when it began and ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HookRan {
    pub(super) hook: (usize, usize),
    pub(super) begin: Duration,
    pub(super) end: Duration,
}

/// The hooks of a run: those that each node adds, assigned cyclically, and their record.
#[derive(Clone)]
pub(super) struct Hooks {
    pub(super) of: Arc<Vec<Vec<HookGen>>>,
    pub(super) ran: Arc<Mutex<Vec<HookRan>>>,
    pub(super) begin: Instant,
}

impl Hooks {
    /// Returns the hooks that a node adds.
    pub(super) fn of(&self, number: usize) -> &[HookGen] {
        match self.of.len() {
            0 => &[],
            count => &self.of[number % count],
        }
    }

    fn add(&self, number: usize, lifecycle: &Lifecycle) {
        for (at, hook) in self.of(number).iter().enumerate() {
            let (ran, zero, takes) = (self.ran.clone(), self.begin, Duration::from_millis(hook.millis));
            let added = lifecycle.hook(format!("{number}.{at}")).on_start(move |_| async move {
                let begin = zero.elapsed();
                sleep(takes).await;
                ran.lock().push(HookRan { hook: (number, at), begin, end: zero.elapsed() });
                Ok(())
            });
            if hook.parallel { added.parallel().add() } else { added.add() }
        }
    }
}

/// A constructor whose types are known at run time only.
struct Dynamic {
    number: usize,
    asks: Vec<Ask>,
    gives: Vec<Give>,
    log: Log,
    hooks: Option<Hooks>,
}

impl Erased for Dynamic {
    fn deps(&self, deps: &mut Deps) {
        let dep = |ask: &Ask| Dep { key: ask.key(), optional: matches!(ask, Ask::Optional(_)) };
        deps.list.extend(self.asks.iter().map(dep));
    }

    fn outs(&self, outs: &mut Outs) {
        let out = |give: &Give| Out { key: give.key(), maybe: matches!(give, Give::Maybe(..)) };
        outs.list.extend(self.gives.iter().map(out));
    }

    fn call(&self, cx: &mut Cx<'_>, sink: &mut Sink) -> Call {
        let value = |slot: &crate::param::Slot| -> Option<usize> {
            cx.values[slot.out].as_ref()?.downcast_ref().copied()
        };
        let got = |edge: &crate::param::Edge| edge.slots().iter().filter_map(value).collect();
        self.log.lock().push((self.number, cx.edges.iter().map(got).collect()));
        if let (Some(hooks), Ok(lifecycle)) = (&self.hooks, Lifecycle::extract(cx)) {
            hooks.add(self.number, &lifecycle);
        }
        let give = |give: &Give| -> Option<Value> {
            (!matches!(give, Give::Maybe(_, false))).then(|| Arc::new(self.number) as Value)
        };
        sink.values.extend(self.gives.iter().map(give));
        Call::Ready(Ok(()))
    }
}

/// A scope with a lifecycle of its own, independent of its type.
pub(super) trait Handle: Send + Sync {
    fn start(&self) -> BoxFuture<'_, Result<(), HiveError>>;
    fn stop(&self) -> BoxFuture<'_, Result<(), HiveError>>;
}

impl<T: ?Sized> Handle for Scope<T> {
    fn start(&self) -> BoxFuture<'_, Result<(), HiveError>> {
        Scope::start(self).boxed()
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), HiveError>> {
        Scope::stop(self).boxed()
    }
}

/// The handles that invocations took, by the index of the scope.
pub(super) type Handles = Arc<Mutex<Vec<(usize, Arc<dyn Handle>)>>>;

/// The cells of a generated graph. Nodes and lifecycles have indexes in order of registration.
pub(super) struct Cells {
    pub(super) log: Log,
    pub(super) handles: Handles,
    pub(super) hooks: Option<Hooks>,
    nodes: usize,
    modules: usize,
    lives: usize,
}

/// Returns the name of a node, as errors print it.
pub(super) fn name(number: usize) -> &'static str {
    const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    NAMES.get(number).copied().unwrap_or_else(|| Box::leak(number.to_string().into_boxed_str()))
}

impl Cells {
    pub(super) fn new(log: &Log) -> Self {
        let (log, handles) = (log.clone(), Handles::default());
        Cells { log, handles, hooks: None, nodes: 0, modules: 0, lives: 0 }
    }

    fn constructor(&mut self, asks: &[Ask], gives: &[Give]) -> Constructor {
        let number = self.nodes;
        self.nodes += 1;
        let place = Place { function: name(number), at: Location::caller() };
        let (asks, gives, log) = (asks.to_vec(), gives.to_vec(), self.log.clone());
        let hooks = self.hooks.clone();
        Constructor { place, erased: Arc::new(Dynamic { number, asks, gives, log, hooks }) }
    }

    pub(super) fn all(&mut self, gens: &[Gen]) -> Vec<Cell> {
        gens.iter().map(|cell| self.cell(cell)).collect()
    }

    fn cell(&mut self, cell: &Gen) -> Cell {
        let repr = match cell {
            Gen::Provide { private, asks, gives } => {
                Repr::Provide { constructor: self.constructor(asks, gives), private: *private }
            }
            Gen::Invoke(asks) => Repr::Invoke(self.constructor(asks, &[])),
            Gen::DecorateAll { asks, gives } => Repr::DecorateAll(self.constructor(asks, &[*gives])),
            Gen::Decorate { asks, gives, inside } => {
                let constructor = self.constructor(asks, &[*gives]);
                Repr::Decorate { constructor, cells: self.all(inside) }
            }
            Gen::Module(inside) => {
                let id = self.module_id();
                return module(id, "x", self.all(inside));
            }
            Gen::Scope(inside) => {
                let (id, number) = (self.module_id(), self.lives);
                self.lives += 1;
                let inside = self.all(inside);
                return match number {
                    0 => life::<T<0>>(0, id, inside, &self.handles),
                    1 => life::<T<1>>(1, id, inside, &self.handles),
                    2 => life::<T<2>>(2, id, inside, &self.handles),
                    _ => module(id, "x", inside),
                };
            }
            Gen::When(switch, stands, inside) => {
                let (switch, stands) = (*switch, *stands);
                return bundle(self.all(inside)).when(move |s: &Switches| s.stands(switch) == stands);
            }
        };
        Cell(Arc::new(repr))
    }

    fn module_id(&mut self) -> String {
        self.modules += 1;
        format!("m{}", self.modules)
    }
}

/// Returns a scope, and an invocation that keeps its handle.
fn life<S: 'static>(number: usize, id: String, inside: Vec<Cell>, handles: &Handles) -> Cell {
    let handles = handles.clone();
    let keep = invoke(move |handle: Arc<Scope<S>>| handles.lock().push((number, handle)));
    bundle([scope::<S>(id, "x", inside), keep])
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let ask = (0..TYPES, 0..3_u8).prop_map(|(of, how)| match how {
        0 => Ask::Required(of),
        1 => Ask::Optional(of),
        _ => Ask::Group(of),
    });
    vec(ask, 0..3)
}

fn give() -> impl Strategy<Value = Give> {
    (0..TYPES, 0..8_u8).prop_map(|(of, how)| match how {
        0 => Give::Maybe(of, true),
        1 => Give::Maybe(of, false),
        2..=4 => Give::Member(of),
        _ => Give::Plain(of),
    })
}

fn decoration() -> impl Strategy<Value = Give> {
    (0..TYPES, any::<bool>()).prop_map(|(of, one)| if one { Give::Plain(of) } else { Give::Member(of) })
}

pub(super) fn gens() -> impl Strategy<Value = Vec<Gen>> {
    let leaf = prop_oneof![
        5 => (any::<bool>(), asks(), vec(give(), 1..3))
            .prop_map(|(private, asks, gives)| Gen::Provide { private, asks, gives }),
        3 => asks().prop_map(Gen::Invoke),
        1 => (asks(), decoration()).prop_map(|(asks, gives)| Gen::DecorateAll { asks, gives }),
    ];
    let tree = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            2 => vec(inner.clone(), 1..4).prop_map(Gen::Module),
            2 => vec(inner.clone(), 1..4).prop_map(Gen::Scope),
            2 => (0..2_usize, any::<bool>(), vec(inner.clone(), 1..3))
                .prop_map(|(switch, stands, inside)| Gen::When(switch, stands, inside)),
            2 => (asks(), decoration(), vec(inner, 1..4)).prop_map(|(asks, gives, inside)| Gen::Decorate {
                asks,
                gives,
                inside
            }),
        ]
    });
    vec(tree, 1..7)
}

/// Generates graphs without an error, in which all nodes are needed: members that take those of lower types, and
/// invocations.
pub(super) fn layers() -> impl Strategy<Value = Vec<Gen>> {
    let node = (0..TYPES + 1, vec(0..TYPES, 0..3)).prop_map(|(of, asks)| {
        let asks = asks.into_iter().filter(|asked| *asked < of).map(Ask::Group).collect();
        match of {
            TYPES => Gen::Invoke(asks),
            _ => Gen::Provide { private: false, asks, gives: vec![Give::Member(of)] },
        }
    });
    let module = vec(node.clone(), 1..4).prop_map(Gen::Module);
    vec(prop_oneof![3 => node, 1 => module], 2..12).prop_map(|mut cells| {
        cells.push(Gen::Invoke((0..TYPES).map(Ask::Group).collect()));
        cells
    })
}

/// Generates the hooks that nodes add, assigned cyclically.
pub(super) fn hooks() -> impl Strategy<Value = Vec<Vec<HookGen>>> {
    let hook =
        (prop::bool::weighted(0.8), 0..50_u64).prop_map(|(parallel, millis)| HookGen { parallel, millis });
    vec(vec(hook, 0..3), 1..8)
}
