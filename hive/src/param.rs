//! Parameters of constructors: types that may be requested and how they are taken from the graph.

use std::ops::Deref;
use std::sync::Arc;

use crate::handles::Handles;
use crate::key::Key;
use crate::outputs::Value;

/// The dependencies of a constructor, declared without running it.
#[derive(Default)]
pub struct Deps {
    pub(crate) list: Vec<Dep>,
    optional: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Dep {
    pub(crate) key: Key,
    pub(crate) optional: bool,
}

impl Deps {
    /// Declares one dependency.
    pub fn need(&mut self, key: Key) {
        self.list.push(Dep { key, optional: self.optional });
    }
}

/// An output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) node: usize,
    /// The index among the outputs of all nodes.
    pub(crate) out: usize,
}

/// A dependency resolved by the plan.
#[derive(Clone, Debug)]
pub(crate) enum Edge {
    Value(Slot),
    Absent,
    Many(Vec<Slot>),
}

impl Edge {
    pub(crate) fn slots(&self) -> &[Slot] {
        match self {
            Edge::Value(slot) => std::slice::from_ref(slot),
            Edge::Absent => &[],
            Edge::Many(slots) => slots,
        }
    }
}

/// The value in each slot; `None` if it is not built, or if an `Option` left it empty.
pub(crate) type Values = Vec<Option<Value>>;

/// The cursor from which parameters are extracted, one resolved dependency after the other.
pub struct Cx<'a> {
    pub(crate) values: &'a Values,
    pub(crate) handles: &'a Handles<'a>,
    pub(crate) edges: &'a [Edge],
    pub(crate) pos: usize,
}

impl<'a> Cx<'a> {
    fn next(&mut self) -> &'a Edge {
        let edge = self.edges.get(self.pos).unwrap_or(&Edge::Absent);
        self.pos += 1;
        edge
    }

    fn value<T: 'static>(&self, slot: Slot) -> Option<&'a T> {
        self.values.get(slot.out)?.as_ref()?.downcast_ref()
    }

    pub(crate) fn one<T: 'static>(&mut self) -> Result<&'a T, Absent> {
        match self.next() {
            Edge::Value(slot) => self.value(*slot).ok_or(Absent),
            Edge::Absent | Edge::Many(_) => Err(Absent),
        }
    }
}

/// The result of [`Param::extract`] when an optional dependency is absent.
#[derive(Debug)]
pub struct Absent;

/// A type that a constructor may take as a parameter.
///
/// Objects are shared between threads: the content of an `Arc` is `Send + Sync`, and so is a trait, `trait Store: Send
/// + Sync`.
///
/// [`deps`](Param::deps) and [`extract`](Param::extract) must walk the same dependencies in the same order. Own
/// implementations compose those of other parameters; `#[derive(Params)]` does so for the fields of a struct.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a constructor parameter",
    label = "not injectable",
    note = "inject `Arc<{Self}>` (or `Arc<dyn Trait>`; an `Arc` as it is, without `&`), `Config<T>`, `ConfigWatch<T>`, `Group<T>`, `Option<..>`, `Arc<Scope<T>>`, `Lifecycle`, `Health`, `JobGroup`, `Shutdowner`, `ModuleId`, or a struct with `#[derive(Params)]`"
)]
pub trait Param: Sized + Send + 'static {
    /// Declares the dependencies.
    fn deps(deps: &mut Deps);
    /// Takes the value from the graph.
    fn extract(cx: &mut Cx<'_>) -> Result<Self, Absent>;
}

/// A type that cells may share: any that is `Send + Sync + 'static`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be shared by cells, which run on several threads",
    label = "not `Send + Sync`",
    note = "a trait says so by `trait Name: Send + Sync`; a struct does by its parts: `Mutex` or atomics for `Cell` and `RefCell`, `Arc` for `Rc`"
)]
pub trait Shareable: Send + Sync + 'static {}

// The message above contains the fix; the compiler's own message about the missing `Sync` does not.
#[diagnostic::do_not_recommend]
impl<T: ?Sized + Send + Sync + 'static> Shareable for T {}

impl<T: ?Sized + Shareable> Param for Arc<T> {
    fn deps(deps: &mut Deps) {
        deps.need(Key::of::<T>());
    }

    fn extract(cx: &mut Cx<'_>) -> Result<Self, Absent> {
        cx.one::<Arc<T>>().cloned()
    }
}

/// `None` when nothing provides `P`. A provider that exists but cannot be built is still an error.
impl<P: Param> Param for Option<P> {
    fn deps(deps: &mut Deps) {
        let outer = std::mem::replace(&mut deps.optional, true);
        P::deps(deps);
        deps.optional = outer;
    }

    fn extract(cx: &mut Cx<'_>) -> Result<Self, Absent> {
        let mut own = Deps::default();
        P::deps(&mut own);
        let end = cx.pos + own.list.len();
        let value = P::extract(cx).ok();
        cx.pos = end;
        Ok(value)
    }
}

/// All values contributed as [`Member<T>`](crate::Member) or [`Members<T>`](crate::Members), in the order in which
/// the contributing cells are registered.
///
/// Each consumer gets clones of the members, so `T` is `Clone`; another type is contributed as `Member<Arc<T>>`.
#[derive(Clone, Debug)]
pub struct Group<T>(pub Vec<T>);

impl<T> Deref for Group<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> IntoIterator for Group<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<T: Clone + Send + Sync + 'static> Param for Group<T> {
    fn deps(deps: &mut Deps) {
        deps.need(Key::group::<T>());
    }

    fn extract(cx: &mut Cx<'_>) -> Result<Self, Absent> {
        let slots = cx.next().slots();
        let members = slots.iter().filter_map(|slot| cx.value::<Vec<T>>(*slot));
        Ok(Group(members.flatten().cloned().collect()))
    }
}
