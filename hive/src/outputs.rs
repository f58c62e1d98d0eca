//! Results of constructors: types that may be provided to the graph.

use std::any::Any;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::key::Key;
use crate::param::Shareable;
use crate::tally::{Look, look};

/// A value in the graph: an `Arc<T>`, or a `Vec<T>` of group members.
pub(crate) type Value = Arc<dyn Any + Send + Sync>;

/// One output that a constructor declares.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    pub(crate) key: Key,
    pub(crate) maybe: bool,
}

/// The outputs of a constructor, declared without running it.
#[derive(Default)]
pub struct Outs {
    pub(crate) list: Vec<Out>,
    maybe: bool,
    /// How to inspect each value; only in tests.
    looks: Option<Vec<Option<Look>>>,
}

impl Outs {
    /// Declares with each key how to inspect its value.
    pub(crate) fn with_looks() -> Self {
        Outs { looks: Some(vec![]), ..Outs::default() }
    }

    /// Returns how to inspect the values, by position.
    pub(crate) fn looks(&self) -> &[Option<Look>] {
        self.looks.as_deref().unwrap_or_default()
    }

    fn give(&mut self, key: Key, look: Option<Look>) {
        self.list.push(Out { key, maybe: self.maybe });
        self.looks.iter_mut().for_each(|looks| looks.push(look));
    }
}

/// The values that a constructor returned.
#[derive(Default)]
pub struct Sink {
    pub(crate) values: Vec<Option<Value>>,
}

impl Sink {
    fn put(&mut self, value: impl Any + Send + Sync) {
        self.values.push(Some(Arc::new(value)));
    }
}

/// A type that a constructor may return: `Arc<T>`, a type with `#[derive(Object)]`, [`Member`], [`Members`], tuples and
/// `#[derive(Outputs)]` structs of those, `Option` (perhaps nothing) and `Result` (perhaps a failure) of any.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a constructor",
    note = "return `Arc<T>` / `Arc<dyn Trait>`, a type with `#[derive(Object)]`, `Member<T>`, a tuple or `#[derive(Outputs)]` struct of those, or `Option` or `Result` of any"
)]
pub trait Outputs: Send + 'static {
    /// Declares the outputs.
    fn keys(outs: &mut Outs);
    /// Stores them in the sink, in the declared order.
    fn emit(self, sink: &mut Sink) -> anyhow::Result<()>;
}

/// Marks a plain type as a graph object, so that a constructor may return it bare: `fn() -> Foo` provides `Arc<Foo>`.
pub trait Object: Send + Sync + 'static {}

impl<T: Object> Outputs for T {
    fn keys(outs: &mut Outs) {
        outs.give(Key::of::<T>(), Some(look::<T>));
    }

    fn emit(self, sink: &mut Sink) -> anyhow::Result<()> {
        sink.put(Arc::new(self));
        Ok(())
    }
}

impl<T: ?Sized + Shareable> Outputs for Arc<T> {
    fn keys(outs: &mut Outs) {
        outs.give(Key::of::<T>(), Some(look::<T>));
    }

    fn emit(self, sink: &mut Sink) -> anyhow::Result<()> {
        sink.put(self);
        Ok(())
    }
}

/// Contributes one value to [`Group<T>`](crate::Group); a type that is not `Clone` is contributed as `Member<Arc<T>>`.
#[derive(Clone, Debug)]
pub struct Member<T: Clone + Send + Sync + 'static>(pub T);

/// Contributes any number of values to [`Group<T>`](crate::Group).
#[derive(Clone, Debug)]
pub struct Members<T: Clone + Send + Sync + 'static>(pub Vec<T>);

impl<T: Clone + Send + Sync + 'static> Outputs for Member<T> {
    fn keys(outs: &mut Outs) {
        outs.give(Key::group::<T>(), None);
    }

    fn emit(self, sink: &mut Sink) -> anyhow::Result<()> {
        sink.put(vec![self.0]);
        Ok(())
    }
}

impl<T: Clone + Send + Sync + 'static> Outputs for Members<T> {
    fn keys(outs: &mut Outs) {
        outs.give(Key::group::<T>(), None);
    }

    fn emit(self, sink: &mut Sink) -> anyhow::Result<()> {
        sink.put(self.0);
        Ok(())
    }
}

/// An optional output: dependents must take it as `Option<..>` (group members are simply left out).
impl<O: Outputs> Outputs for Option<O> {
    fn keys(outs: &mut Outs) {
        let outer = std::mem::replace(&mut outs.maybe, true);
        O::keys(outs);
        outs.maybe = outer;
    }

    fn emit(self, sink: &mut Sink) -> anyhow::Result<()> {
        match self {
            Some(outputs) => outputs.emit(sink),
            None => {
                let mut own = Outs::default();
                O::keys(&mut own);
                sink.values.extend(own.list.iter().map(|_| None));
                Ok(())
            }
        }
    }
}

impl<O: Outputs, E: Into<anyhow::Error> + Send + 'static> Outputs for Result<O, E> {
    fn keys(outs: &mut Outs) {
        O::keys(outs);
    }

    fn emit(self, sink: &mut Sink) -> anyhow::Result<()> {
        self.map_err(Into::into)?.emit(sink)
    }
}

macro_rules! tuple_outputs {
    ($($t:ident)*) => {
        #[allow(non_snake_case, unused_variables, reason = "type names serve as variables; the empty tuple uses none")]
        impl<$($t: Outputs),*> Outputs for ($($t,)*) {
            fn keys(outs: &mut Outs) {
                $($t::keys(outs);)*
            }

            fn emit(self, sink: &mut Sink) -> anyhow::Result<()> {
                let ($($t,)*) = self;
                $($t.emit(sink)?;)*
                Ok(())
            }
        }
    };
}
crate::constructor::each_arity!(tuple_outputs);

/// Marker: the constructor is an ordinary function.
#[derive(Debug)]
pub struct Immediate;

/// Marker: the constructor returns a future.
#[derive(Debug)]
pub struct Awaited;

/// The result of calling a constructor.
pub enum Call {
    #[doc(hidden)]
    Ready(anyhow::Result<()>),
    #[doc(hidden)]
    Pending(BoxFuture<'static, anyhow::Result<Sink>>),
}

/// The declared outputs of a constructor's result. Separate from [`Run`] so that a wrong result and a future that is
/// not `Send` produce different compiler messages.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a constructor",
    label = "this function's result",
    note = "return `Arc<T>` / `Arc<dyn Trait>`, a type with `#[derive(Object)]`, `Member<T>`, a tuple or `#[derive(Outputs)]` struct of those, `Option` or `Result` of any, or a `Send` future of any"
)]
pub trait IntoOutputs<Kind> {
    #[doc(hidden)]
    fn __keys(outs: &mut Outs);
}

impl<O: Outputs> IntoOutputs<Immediate> for O {
    fn __keys(outs: &mut Outs) {
        O::keys(outs);
    }
}

impl<F: Future> IntoOutputs<Awaited> for F
where
    F::Output: Outputs,
{
    fn __keys(outs: &mut Outs) {
        <F::Output as Outputs>::keys(outs);
    }
}

/// The conversion of a constructor's result into values.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a constructor",
    label = "this function's result",
    note = "see the first error; an `async fn` constructor must give a `Send` future"
)]
pub trait Run<Kind> {
    #[doc(hidden)]
    fn __run(self, sink: &mut Sink) -> Call;
}

impl<O: Outputs> Run<Immediate> for O {
    fn __run(self, sink: &mut Sink) -> Call {
        Call::Ready(self.emit(sink))
    }
}

impl<F: Future + Send + 'static> Run<Awaited> for F
where
    F::Output: Outputs,
{
    fn __run(self, _: &mut Sink) -> Call {
        Call::Pending(Box::pin(async move {
            let mut sink = Sink::default();
            self.await.emit(&mut sink)?;
            Ok(sink)
        }))
    }
}
