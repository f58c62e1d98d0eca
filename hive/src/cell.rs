//! Cells: the values from which a hive is composed.

use std::panic::Location;
use std::sync::Arc;

use crate::conditional::Condition;
use crate::config::{ConfigCell, ConfigSpec};
use crate::constructor::{Constructor, ParamList, Shape};
use crate::error::Place;
use crate::key::Key;
use crate::outputs::{IntoOutputs, Outputs, Run};
use crate::scope::{MakeScope, Scope};

/// A part of an application: a provider, an invocation, a configuration struct, or a bundle of other cells.
///
/// Cells are values: they do nothing until a hive is built from them, and one cell may be used in several hives.
#[derive(Clone)]
pub struct Cell(pub(crate) Arc<Repr>);

pub(crate) enum Repr {
    Group(Vec<Cell>),
    Module {
        id: String,
        description: String,
        at: &'static Location<'static>,
        cells: Vec<Cell>,
    },
    Scope {
        id: String,
        description: String,
        at: &'static Location<'static>,
        place: Place,
        key: Key,
        make: MakeScope,
        cells: Vec<Cell>,
    },
    Provide {
        constructor: Constructor,
        private: bool,
    },
    Invoke(Constructor),
    Decorate {
        constructor: Constructor,
        cells: Vec<Cell>,
    },
    DecorateAll(Constructor),
    Config(ConfigCell),
    When {
        condition: Condition,
        cell: Cell,
    },
    /// A cell of which one module is left out, and perhaps another cell put in its place.
    Edit {
        cell: Cell,
        module: String,
        at: &'static Location<'static>,
        with: Option<Cell>,
    },
}

impl Cell {
    /// Enables this cell, usually a [`module`], only if a predicate on a configuration struct holds.
    ///
    /// ```
    /// use hive::prelude::*;
    /// use std::sync::Arc;
    ///
    /// #[derive(hive::Config)]
    /// struct LbConfig {
    ///     /// Enable the load balancer
    ///     enable_lb: bool,
    /// }
    /// #[derive(Object)]
    /// struct Lb;
    /// fn new_lb() -> Lb {
    ///     Lb
    /// }
    /// let lb = module("lb", "Load balancer", [config::<LbConfig>(), provide(new_lb)]).when(|c: &LbConfig| c.enable_lb);
    /// let cells = [lb, invoke(|lb: Option<Arc<Lb>>| println!("with load balancer: {}", lb.is_some()))];
    /// hive::validate(cells.clone()).unwrap();
    /// assert!(!Hive::builder(cells).build().unwrap().tree().contains("provide new_lb\n"));
    /// ```
    ///
    /// Options are read before anything is planned. Objects of an inactive cell are absent: `Option<..>` is `None`, and
    /// the error for a required one names the option that disables the cell. The options of an inactive cell stay
    /// declared, as do those of the cells in it; the struct that `is_on` reads may be declared in the cell itself.
    /// `is_on` must have no side effects.
    #[must_use]
    #[track_caller]
    pub fn when<C: ConfigSpec>(self, is_on: impl Fn(&C) -> bool + Send + Sync + 'static) -> Cell {
        cell(Repr::When { condition: Condition::new(is_on, Location::caller()), cell: self })
    }
}

impl Cell {
    /// These cells without a module that somewhere in them has this id, or a path that ends so: `ipam` or `agent.ipam`. Its
    /// condition goes with it. Without such a module it is a fault of the graph.
    ///
    /// ```
    /// use hive::prelude::*;
    /// use std::sync::Arc;
    ///
    /// struct Store(&'static str);
    /// fn library() -> Cell {
    ///     bundle([
    ///         module("disk", "Keeps things on disk", [provide(|| Arc::new(Store("disk")))]),
    ///         module("banner", "Prints a banner", [invoke(|| println!("hello"))]),
    ///     ])
    /// }
    ///
    /// // All of the library, but quiet, and with a store of our own.
    /// let memory = module("memory", "Keeps things in memory", [provide(|| Arc::new(Store("memory")))]);
    /// let cells = library().without("banner").replace_module("disk", memory);
    /// let checks = invoke(|store: Arc<Store>| assert_eq!(store.0, "memory"));
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// Hive::builder([cells, checks]).build().unwrap().populate().await.unwrap();
    /// # });
    /// ```
    #[must_use]
    #[track_caller]
    pub fn without(self, module: impl Into<String>) -> Cell {
        cell(Repr::Edit { cell: self, module: module.into(), at: Location::caller(), with: None })
    }

    /// These cells with another cell in the place of a module, as [`without`](Cell::without) finds it.
    #[must_use]
    #[track_caller]
    pub fn replace_module(self, module: impl Into<String>, with: Cell) -> Cell {
        cell(Repr::Edit { cell: self, module: module.into(), at: Location::caller(), with: Some(with) })
    }
}

/// Anything that is a list of cells: one cell, an array or a vector.
pub trait IntoCells {
    /// Returns the cells, in registration order.
    fn into_cells(self) -> Vec<Cell>;
}

impl IntoCells for Cell {
    fn into_cells(self) -> Vec<Cell> {
        vec![self]
    }
}

impl IntoCells for Vec<Cell> {
    fn into_cells(self) -> Vec<Cell> {
        self
    }
}

impl<const N: usize> IntoCells for [Cell; N] {
    fn into_cells(self) -> Vec<Cell> {
        self.into()
    }
}

fn cell(repr: Repr) -> Cell {
    Cell(Arc::new(repr))
}

/// Returns a named scope around cells.
///
/// `id` is one lower-case letter followed by up to 30 of `a-z 0-9 _ -`; siblings need different ids. The path of ids
/// names the module in logs, health and errors: `agent.controlplane.ipam`.
#[track_caller]
pub fn module(id: impl Into<String>, description: impl Into<String>, cells: impl IntoCells) -> Cell {
    let (id, description, at) = (id.into(), description.into(), Location::caller());
    cell(Repr::Module { id, description, at, cells: cells.into_cells() })
}

/// Returns a [`module`] with a lifecycle of its own: its cells see every object of the surrounding hive; the
/// surrounding hive sees only an `Arc<`[`Scope<T>`]`>`, which starts and stops it at run time. `T` is any type that
/// distinguishes it from other scopes.
///
/// ```
/// use std::sync::Arc;
///
/// use hive::prelude::*;
///
/// struct Leader;
///
/// fn announce(lifecycle: Lifecycle) {
///     lifecycle.hook("announce").on_start(|_| async { Ok(()) }).on_stop(|_| async { Ok(()) }).add();
/// }
/// fn elect(leader: Arc<Scope<Leader>>, jobs: JobGroup) {
///     jobs.one_shot("elect", |cx: JobCx| async move {
///         leader.start().await?; // got the lease
///         cx.cancelled().await; // or lost it
///         leader.stop().await?;
///         Ok(())
///     }).add();
/// }
/// let cells = [invoke(elect), scope::<Leader>("leader", "What only the leader does", invoke(announce))];
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let mut hive = TestHive::new(cells);
/// hive.start().await;
/// # hive.stop().await; });
/// ```
///
/// Its constructors are planned with all others, and run at each start, as do its hooks and jobs; configuration is read
/// once. It can be started once the hive has started, and is stopped with the hive, before any other hook.
#[track_caller]
pub fn scope<T: ?Sized + 'static>(
    id: impl Into<String>,
    description: impl Into<String>,
    cells: impl IntoCells,
) -> Cell {
    let (id, description, at) = (id.into(), description.into(), Location::caller());
    let place = Place { function: std::any::type_name::<Scope<T>>(), at };
    let (key, make) = (Key::of::<Scope<T>>(), crate::scope::make::<T> as MakeScope);
    cell(Repr::Scope { id, description, at, place, key, make, cells: cells.into_cells() })
}

/// Bundles cells without a scope.
pub fn bundle(cells: impl IntoCells) -> Cell {
    cell(Repr::Group(cells.into_cells()))
}

/// Registers a constructor whose results the whole hive may use. It runs at most once, and only if a dependent needs
/// it.
#[track_caller]
pub fn provide<F: Shape<A>, A: ParamList, K: 'static>(f: F) -> Cell
where
    F::Out: IntoOutputs<K> + Run<K>,
{
    cell(Repr::Provide { constructor: Constructor::new(f, Location::caller()), private: false })
}

/// Registers a constructor whose results are visible only to its module and submodules.
#[track_caller]
pub fn provide_private<F: Shape<A>, A: ParamList, K: 'static>(f: F) -> Cell
where
    F::Out: IntoOutputs<K> + Run<K>,
{
    cell(Repr::Provide { constructor: Constructor::new(f, Location::caller()), private: true })
}

/// A cell that provides an object as one of its interfaces: `bind!(Disk => dyn Store)` is a [`provide`](crate::provide()) that takes
/// `Arc<Disk>` and gives it as `Arc<dyn Store>`. With `provide_private(new_disk)` in the same module the interface is all
/// that others see.
///
/// ```
/// use hive::prelude::*;
/// use std::sync::Arc;
///
/// trait Store: Send + Sync {}
/// #[derive(Object)]
/// struct Disk;
/// impl Store for Disk {}
/// fn new_disk() -> Disk {
///     Disk
/// }
///
/// let disk = module("disk", "Keeps things on disk", [provide_private(new_disk), bind!(Disk => dyn Store)]);
/// hive::validate([disk, invoke(|_: Arc<dyn Store>| ())]).unwrap();
/// ```
#[macro_export]
macro_rules! bind {
    ($object:ty => $interface:ty) => {
        $crate::provide(|object: ::std::sync::Arc<$object>| -> ::std::sync::Arc<$interface> { object })
    };
}

/// Registers a ready value, or several: anything that a constructor may return.
#[track_caller]
pub fn supply<O: Outputs + Clone + Sync>(outputs: O) -> Cell {
    let constructor = Constructor::new(move || outputs.clone(), Location::caller());
    cell(Repr::Provide { constructor, private: false })
}

/// Registers a function that runs when the hive is populated: its parameters are the roots of construction, in order of
/// registration.
#[track_caller]
pub fn invoke<F: Shape<A>, A: ParamList, K: 'static>(f: F) -> Cell
where
    F::Out: IntoOutputs<K> + Run<K>,
{
    cell(Repr::Invoke(Constructor::new(f, Location::caller())))
}

/// Registers a function from an object to another of the same type, which the wrapped cells see instead.
///
/// The decorator's own parameter resolves outside of the wrapped cells; decorators nest, and the innermost takes
/// effect. A private provider inside the wrapped cells takes precedence over the decorator. For a group the decorator
/// takes `Group<T>` and returns `Members<T>`.
#[track_caller]
pub fn decorate<F: Shape<A>, A: ParamList, K: 'static>(f: F, cells: impl IntoCells) -> Cell
where
    F::Out: IntoOutputs<K> + Run<K>,
{
    let constructor = Constructor::new(f, Location::caller());
    cell(Repr::Decorate { constructor, cells: cells.into_cells() })
}

/// Registers a function from an object to another of the same type, which the whole hive sees instead, the provider's
/// own module included. A [`decorate`] further in takes the result of this one.
#[track_caller]
pub fn decorate_all<F: Shape<A>, A: ParamList, K: 'static>(f: F) -> Cell
where
    F::Out: IntoOutputs<K> + Run<K>,
{
    cell(Repr::DecorateAll(Constructor::new(f, Location::caller())))
}

/// Declares the options of a `#[derive(hive::Config)]` struct; any cell of the hive may take them as `Config<T>`.
#[track_caller]
pub fn config<T: ConfigSpec>() -> Cell {
    cell(Repr::Config(ConfigCell::of::<T>(Location::caller())))
}
