//! The objects that constructors return, as weak references, for tests that look for leaks.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use crate::error::Site;
use crate::key::Key;
use crate::outputs::{Outs, Value};
use crate::param::Edge;

/// A weak reference to an object of the graph.
pub(crate) trait Remains: Send + Sync {
    /// Returns the number of references to the object.
    fn holders(&self) -> usize;
    /// Returns the address of the object, to detect that two are the same.
    fn address(&self) -> usize;
}

impl<T: ?Sized + Send + Sync> Remains for Weak<T> {
    fn holders(&self) -> usize {
        self.strong_count()
    }

    fn address(&self) -> usize {
        self.as_ptr().cast::<()>().addr()
    }
}

/// A function that inspects a value of the graph, an `Arc<T>`.
pub(crate) type Look = fn(&Value) -> Option<Box<dyn Remains>>;

pub(crate) fn look<T: ?Sized + Send + Sync + 'static>(value: &Value) -> Option<Box<dyn Remains>> {
    let object = value.downcast_ref::<Arc<T>>()?;
    Some(Box::new(Arc::downgrade(object)))
}

/// All objects that constructors have returned.
#[derive(Default)]
pub(crate) struct Tally(Mutex<Vec<Given>>);

/// An object of a constructor.
pub(crate) struct Given {
    pub(crate) node: usize,
    pub(crate) key: Key,
    pub(crate) site: Site,
    pub(crate) object: Box<dyn Remains>,
    /// The constructors whose objects are among its arguments.
    pub(crate) takes: Vec<usize>,
}

impl Tally {
    /// Records the results of a constructor.
    pub(crate) fn note(
        &self,
        node: usize,
        site: &Site,
        edges: &[Edge],
        outs: &Outs,
        values: &[Option<Value>],
    ) {
        let takes: Vec<usize> = edges.iter().flat_map(Edge::slots).map(|slot| slot.node).collect();
        let given = outs.list.iter().zip(outs.looks()).zip(values).filter_map(|((out, look), value)| {
            let object = (*look)?(value.as_ref()?)?;
            Some(Given { node, key: out.key, site: site.clone(), object, takes: takes.clone() })
        });
        self.0.lock().extend(given);
    }

    /// Returns the objects so far.
    pub(crate) fn given(&self) -> MutexGuard<'_, Vec<Given>> {
        self.0.lock()
    }
}
