//! Constructors: any `fn`, `async fn` or closure whose parameters are [`Param`]s and whose result is [`Outputs`](crate::Outputs).
//!
//! Programs do not need these types. They are for implementations of [`Param`] and [`Outputs`](crate::Outputs) by hand, which have [`Deps`],
//! [`Cx`], [`Outs`] and [`Sink`] in their signatures, and for functions that pass a constructor on:
//!
//! ```
//! use hive::constructor::{Function, ParamList};
//! use hive::prelude::*;
//!
//! /// A provider in a module of its own.
//! fn alone<F: Function<A, K>, A: ParamList, K: 'static>(id: &str, constructor: F) -> Cell {
//!     module(id, "Provides one object", [provide(constructor)])
//! }
//!
//! #[derive(Object)]
//! struct Clock;
//! hive::validate([alone("clock", || Clock), invoke(|_: std::sync::Arc<Clock>| ())]).unwrap();
//! ```
//!
//! The work is split over traits with one purpose each, so that the compiler names the wrong parameter, the wrong
//! result or the `.await` that is not `Send`, instead of reporting that the function is not a constructor.

use std::any::type_name;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use crate::error::Place;
use crate::param::Param;

#[doc(hidden)]
pub use crate::outputs::{Awaited, Call, Immediate};
pub use crate::outputs::{IntoOutputs, Outs, Run, Sink};
pub use crate::param::{Absent, Cx, Deps, Shareable};

/// The shape of a constructor: a callable with up to 12 parameters. It bounds neither parameters nor result, so that
/// inference always succeeds and the offending type is reported by the traits that do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a constructor",
    note = "a constructor is a `fn`, `async fn` or `Fn` closure of at most 12 parameters; take a struct with `#[derive(Params)]` for more"
)]
pub trait Shape<Args>: Send + Sync + 'static {
    /// The result of a call.
    type Out;
    #[doc(hidden)]
    fn __call(&self, args: Args) -> Self::Out;
}

/// A tuple of parameters.
#[diagnostic::on_unimplemented(message = "`{Self}` are not constructor parameters")]
pub trait ParamList: Sized + Send + 'static {
    #[doc(hidden)]
    fn __deps(deps: &mut Deps);
    #[doc(hidden)]
    fn __extract(cx: &mut Cx<'_>) -> Result<Self, Absent>;
}

/// A function that [`provide`](crate::provide()), [`invoke`](crate::invoke()) and the others take: with parameters `A` and a result that is a value or a
/// future, which `K` tells apart. Stands for the bounds of these functions where one of them is called with a generic
/// constructor.
pub trait Function<A: ParamList, K>: Shape<A, Out: IntoOutputs<K> + Run<K>> {}

impl<A: ParamList, K, F: Shape<A, Out: IntoOutputs<K> + Run<K>>> Function<A, K> for F {}

macro_rules! each_arity {
    ($m:ident) => {
        $m!();
        $m!(A);
        $m!(A B);
        $m!(A B C);
        $m!(A B C D);
        $m!(A B C D G);
        $m!(A B C D G H);
        $m!(A B C D G H I);
        $m!(A B C D G H I J);
        $m!(A B C D G H I J K);
        $m!(A B C D G H I J K L);
        $m!(A B C D G H I J K L M);
        $m!(A B C D G H I J K L M N);
    };
}
pub(crate) use each_arity;

macro_rules! constructor {
    ($($t:ident)*) => {
        #[allow(non_snake_case, reason = "type names serve as variables")]
        impl<F, O, $($t),*> Shape<($($t,)*)> for F
        where
            F: Fn($($t),*) -> O + Send + Sync + 'static,
        {
            type Out = O;

            fn __call(&self, ($($t,)*): ($($t,)*)) -> O {
                self($($t),*)
            }
        }

        #[allow(unused_variables, reason = "the empty list uses none")]
        impl<$($t: Param),*> ParamList for ($($t,)*) {
            fn __deps(deps: &mut Deps) {
                $($t::deps(deps);)*
            }

            fn __extract(cx: &mut Cx<'_>) -> Result<Self, Absent> {
                Ok(($($t::extract(cx)?,)*))
            }
        }

        #[diagnostic::do_not_recommend]
        impl<$($t: Param),*> Param for ($($t,)*) {
            fn deps(deps: &mut Deps) {
                Self::__deps(deps);
            }

            fn extract(cx: &mut Cx<'_>) -> Result<Self, Absent> {
                Self::__extract(cx)
            }
        }
    };
}
each_arity!(constructor);

/// A constructor with its types erased.
pub(crate) trait Erased: Send + Sync {
    fn deps(&self, deps: &mut Deps);
    fn outs(&self, outs: &mut Outs);
    /// Stores results that are available at once in the sink.
    fn call(&self, cx: &mut Cx<'_>, sink: &mut Sink) -> Call;
}

struct Typed<F, A, K>(F, PhantomData<fn() -> (A, K)>);

impl<F: Shape<A>, A: ParamList, K: 'static> Erased for Typed<F, A, K>
where
    F::Out: IntoOutputs<K> + Run<K>,
{
    fn deps(&self, deps: &mut Deps) {
        A::__deps(deps);
    }

    fn outs(&self, outs: &mut Outs) {
        <F::Out as IntoOutputs<K>>::__keys(outs);
    }

    fn call(&self, cx: &mut Cx<'_>, sink: &mut Sink) -> Call {
        match A::__extract(cx) {
            Ok(args) => self.0.__call(args).__run(sink),
            Err(Absent) => Call::Ready(Err(anyhow::anyhow!(
                "a parameter's `extract` asks for more than its `deps` declare"
            ))),
        }
    }
}

/// A constructor as stored in a cell.
#[derive(Clone)]
pub(crate) struct Constructor {
    pub(crate) place: Place,
    pub(crate) erased: Arc<dyn Erased>,
}

impl Constructor {
    pub(crate) fn new<F: Shape<A>, A: ParamList, K: 'static>(f: F, at: &'static Location<'static>) -> Self
    where
        F::Out: IntoOutputs<K> + Run<K>,
    {
        let place = Place { function: type_name::<F>(), at };
        Constructor { place, erased: Arc::new(Typed(f, PhantomData)) }
    }
}
